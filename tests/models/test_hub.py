"""Hub repositories: from a cache in the real layout, and every error of the hub's client."""

from __future__ import annotations

import inspect
import os
import shutil
import sys

import huggingface_hub
import pytest
from huggingface_hub import errors as hub

from budwood.errors import ModelError, StorageError
from budwood.models import load_base, locate
from budwood.models.borders import HUB_ERRORS
from tests import tiny

httpx = sys.modules[hub.HTTPError.__module__.partition(".")[0]]  # httpx, or httpx2 in later releases of the client
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty hub cache; `huggingface_hub` is offline in the tests."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def repository(cache, tmp_path):
    """The cached repository org/name with one commit, called main and v1: its snapshot folder."""
    place = cache / "models--org--name"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "blobs").mkdir()
    (place / "refs").mkdir()
    for name in ("main", "v1"):
        (place / "refs" / name).write_text(COMMIT)
    for number, file in enumerate(sorted(tiny.save(tiny.llama(), tmp_path / "made").iterdir())):
        blob = place / "blobs" / f"{number:040d}"
        shutil.move(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def test_a_cached_repository(repository):
    source = locate("org/name")
    assert source.folder == repository
    assert source.revision == COMMIT
    assert source.offline_note == (
        "the default branch of org/name as it was cached (0123456789ab); not compared with the hub"
    )
    assert load_base(source).model.config.hidden_size == 32


def test_a_cached_tag(repository):
    source = locate("org/name@v1")
    assert source.revision == COMMIT
    assert "v1 of org/name" in source.offline_note


def test_a_cached_commit_needs_no_note(repository):
    source = locate(f"org/name@{COMMIT}")
    assert (source.folder, source.offline_note) == (repository, "")


@pytest.mark.parametrize("reference", ["org/other", "org/name@v2"])
def test_not_cached_and_offline(repository, reference):
    with pytest.raises(ModelError, match=r"(?s)is not cached, and HF_HUB_OFFLINE forbids the hub.*hf download org/"):
        locate(reference)


def test_a_partial_copy_offline(repository):
    (repository / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="org/name has no safetensors weights"):
        locate("org/name")


def test_a_cached_adapter(repository):
    (repository / "config.json").unlink()
    (repository / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(ModelError, match="org/name is a PEFT adapter"):
        locate("org/name")


def test_a_partial_copy_is_completed_online(repository, monkeypatch):
    calls = []
    weights = repository / "model.safetensors"
    kept = os.readlink(weights)
    weights.unlink()

    def download(name, *, local_files_only, allow_patterns, ignore_patterns, revision):
        calls.append(local_files_only)
        if not local_files_only:
            weights.symlink_to(kept)
        return str(repository)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = locate("org/name")
    assert calls == [True, False]
    assert source.offline_note == ""


def test_only_text_and_safetensors_are_asked_for(repository, monkeypatch):
    from huggingface_hub.utils import filter_repo_objects

    from budwood.models.hub import UNWANTED, WANTED

    files = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.model", "merges.txt"]
    others = [
        "pytorch_model.bin",
        "consolidated.safetensors",
        "onnx/model.safetensors",
        "original/params.json",
        "a.pth",
    ]
    assert list(filter_repo_objects(files + others, allow_patterns=WANTED, ignore_patterns=UNWANTED)) == files


def _response(status: int = 404) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co/api/models/org/name"))


def _instance(kind: type[Exception]) -> Exception:
    if issubclass(kind, hub.HfHubHTTPError):
        return kind("no", response=_response())
    arguments = {"CacheNotFound": ("no", "/cache"), "IncompleteSnapshotError": ("no", "/cache")}
    return kind(*arguments.get(kind.__name__, ("no",)))


# Errors of other services of the client; a download never raises them.
ELSEWHERE = {
    "BucketBatchError", "BucketNotFoundError", "CLIError", "CLIExtensionInstallError", "CachedRepoTreeNotFoundError",
    "ConfirmationError", "DDUFCorruptedFileError", "DDUFError", "DDUFExportError", "DDUFInvalidEntryNameError",
    "DeviceCodeError", "DryRunError", "FileDuplicationError", "GenerationError", "HTTPError", "HfUriError",
    "IncompleteGenerationError", "InferenceEndpointError", "InferenceEndpointTimeoutError", "InferenceTimeoutError",
    "JobNotFoundError", "NotASafetensorsRepoError", "OIDCError", "OverloadedError", "SafetensorsParsingError",
    "SandboxCommandError", "SandboxError", "StrictDataclassClassValidationError",
    "StrictDataclassDefinitionError", "StrictDataclassError", "StrictDataclassFieldValidationError",
    "TextGenerationError", "UnknownError", "ValidationError",
}  # fmt: skip
RAISED = [
    kind
    for name, kind in inspect.getmembers(hub, inspect.isclass)
    if issubclass(kind, Exception) and name not in ELSEWHERE
]
NETWORK = [
    httpx.ConnectError("no"),
    httpx.ReadTimeout("no"),
    httpx.ProxyError("no"),
    ConnectionError(),
    TimeoutError(),
]


@pytest.mark.parametrize("error", [*map(_instance, RAISED), *NETWORK], ids=lambda error: type(error).__name__)
def test_every_error_of_the_client_is_translated(cache, monkeypatch, error):
    def fail(*args, local_files_only, **options):
        raise hub.LocalEntryNotFoundError("not cached") if local_files_only else error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError) as caught:
        locate("org/name@v7")
    assert caught.value.action
    assert "{" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (_instance(hub.GatedRepoError), "accept its terms at https://huggingface.co/org/name"),
        (_instance(hub.RepositoryNotFoundError), "the hub has no model org/name"),
        (_instance(hub.RevisionNotFoundError), "org/name has no revision 'v7'"),
        (_instance(hub.RemoteEntryNotFoundError), "a file of org/name is missing on the hub"),
        (_instance(hub.OfflineModeIsEnabled), "HF_HUB_OFFLINE forbids the hub"),
        (hub.HfHubHTTPError("503 Server Error", response=_response(503)), "the hub answered with an error"),
        (httpx.ConnectError("no route"), "the hub cannot be reached"),
    ],
)
def test_the_errors_say_the_way_out(cache, monkeypatch, error, says):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _raiser(error))
    with pytest.raises(ModelError) as caught:
        locate("org/name@v7")
    assert says in str(caught.value)


def _raiser(error):
    def fail(*args, **options):
        raise error

    return fail


def test_the_cause_says_more_than_its_wrapper(cache, monkeypatch):
    wrapper = hub.LocalEntryNotFoundError("cannot find it")
    wrapper.__cause__ = hub.OfflineModeIsEnabled("offline")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _raiser(wrapper))
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        locate("org/name")


def test_a_full_disk_is_a_storage_error(cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _raiser(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match="the disk is full"):
        locate("org/name")


def test_a_bug_is_not_hidden(cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _raiser(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        locate("org/name")


def test_every_row_of_the_table_names_an_error():
    raised = {kind.__name__ for error in [*map(_instance, RAISED), *NETWORK] for kind in type(error).__mro__}
    assert set(HUB_ERRORS) <= raised
