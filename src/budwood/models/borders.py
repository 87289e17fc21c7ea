"""Where errors of huggingface_hub, transformers and torch become ours, while a base is found and loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from budwood.errors import BudwoodError, ModelError, OutOfMemoryError
from budwood.models.reference import ModelReference
from budwood.storage import guarded


class _Meaning(NamedTuple):
    got: str
    action: str


_LOGIN = "if you have access, log in with `hf auth login`"
_CONNECT = "check the connection and try again; a model that is already cached works without one"
_DOWNLOAD = "download it where there is a connection: `hf download {name}`"
_NO_FILE = _Meaning("a file of {name} is missing on the hub", "see its files at {page}")

HUB_ERRORS = {
    "GatedRepoError": _Meaning(
        "access to {name} must be asked for", "accept its terms at {page}, then `hf auth login`"
    ),
    "DisabledRepoError": _Meaning("{name} was disabled on the hub", "choose another model"),
    "RepositoryNotFoundError": _Meaning("the hub has no model {name}", f"check the name; if it is private, {_LOGIN}"),
    "RevisionNotFoundError": _Meaning("{name} has no revision {revision!r}", "see the branches and tags at {page}"),
    "RevisionResolutionError": _Meaning(
        "revision {revision!r} of {name} is not cached, and the hub is away", _CONNECT
    ),
    "IncompleteSnapshotError": _Meaning("the cached copy of {name} is incomplete, and the hub is away", _DOWNLOAD),
    "OfflineModeIsEnabled": _Meaning("{name} is not cached, and HF_HUB_OFFLINE forbids the hub", _DOWNLOAD),
    "LocalEntryNotFoundError": _Meaning("{name} is not cached, and the hub cannot be reached", _CONNECT),
    "RemoteEntryNotFoundError": _NO_FILE,
    "EntryNotFoundError": _NO_FILE,
    "LocalTokenNotFoundError": _Meaning("{name} needs a login", _LOGIN),
    "HFValidationError": _Meaning("{name!r} is not the name of a hub repository", "write it as org/name"),
    "BadRequestError": _Meaning("the hub refused the request for {name}", "check the name and the revision"),
    "FileMetadataError": _Meaning("the hub's answer about {name} has no file data", "a proxy may cut it; " + _CONNECT),
    "XetDownloadError": _Meaning(
        "the download of {name} broke off", "run the same command again: it goes on from there"
    ),
    "CorruptedCacheException": _Meaning("the hub's cache of {name} is damaged", "remove it with `hf cache rm`"),
    "CacheNotFound": _Meaning("the hub's cache folder is missing", "check HF_HOME"),
    "HfHubHTTPError": _Meaning("the hub answered with an error for {name}", "try again later"),
    "HTTPError": _Meaning("the hub cannot be reached for {name}", _CONNECT),
    "ConnectionError": _Meaning("the hub cannot be reached for {name}", _CONNECT),
    "TimeoutError": _Meaning("the hub did not answer in time for {name}", _CONNECT),
}
"""Class name of a foreign error -> what it means. By name, because the classes move between releases and httpx was
replaced by httpx2; the most specific ancestor wins."""


@contextlib.contextmanager
def hub_errors(reference: ModelReference) -> Iterator[None]:
    """Turn what goes wrong at the hub into a `ModelError` that says the way out; a full disk is a `StorageError`."""
    try:
        with guarded("the hub's cache"):
            yield
    except BudwoodError:
        raise
    except Exception as error:
        meaning = _meaning(error)
        if meaning is None:
            raise
        facts = {
            "name": reference.location,
            "revision": reference.revision or "main",
            "page": f"https://huggingface.co/{reference.location}",
        }
        raise ModelError(
            f"{meaning.got.format(**facts)} ({_first_line(error)})", action=meaning.action.format(**facts)
        ) from error


def _meaning(error: Exception) -> _Meaning | None:
    """The meaning of an error, or of the error that caused it where that says more."""
    causes = [error, *([error.__cause__] if isinstance(error.__cause__, Exception) else [])]
    known = [
        HUB_ERRORS[kind.__name__] for cause in causes for kind in type(cause).__mro__ if kind.__name__ in HUB_ERRORS
    ]
    offline = HUB_ERRORS["OfflineModeIsEnabled"]
    return offline if offline in known else next(iter(known), None)


@contextlib.contextmanager
def loading_errors(what: str) -> Iterator[None]:
    """Turn what goes wrong while `what` is read into a `ModelError`, or an `OutOfMemoryError`.

    transformers reports bad files with ValueError, KeyError, OSError, RuntimeError and ImportError alike.
    """
    try:
        yield
    except BudwoodError:
        raise
    except MemoryError as error:
        raise _out_of_memory(what) from error
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
            raise _out_of_memory(what) from error
        files = "check that the files are whole and belong together"
        raise ModelError(
            f"{what} cannot be loaded: {type(error).__name__}: {_first_line(error)}",
            action="install the package that is named" if isinstance(error, ImportError) else files,
        ) from error


def _out_of_memory(what: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"not enough memory to load {what}",
        action="load it in bfloat16, quantised (+nf4), on another device, or take a smaller model",
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and reports off standard error, and put its switches back afterwards."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
