import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from budwood import storage
from budwood.errors import InterruptedRunError, NonFiniteError, StorageError, UsageError
from budwood.training.events import append_event, read_events, truncate_events
from budwood.training.folder import RunFolder, read_metrics
from budwood.training.status import Heartbeat, read_status


def write_status(path, **changes):
    path.mkdir(exist_ok=True)
    now = datetime.now(UTC).isoformat()
    status = {"state": "running", "exit_code": None, "error": None, "pid": os.getpid(), "host": "elsewhere"}
    storage.write_json(path / "status.json", status | {"heartbeat": now, "step": 1, "total_steps": 2} | changes)


# --- who may open it


def test_a_run_ends_done(tmp_path):
    path = tmp_path / "runs" / "a"
    with RunFolder.open(path) as folder:
        assert read_status(path)["state"] == "running"
        folder.progress(3, 9)
    status = read_status(path)
    assert (status["state"], status["exit_code"], status["step"], status["total_steps"]) == ("done", 0, 3, 9)


@pytest.mark.parametrize(
    "error, state, code",
    [
        (NonFiniteError("the loss is nan", action="lower it"), "failed", 3),
        (InterruptedRunError("stopped"), "interrupted", 130),
        (KeyboardInterrupt(), "interrupted", 130),
        (ZeroDivisionError("ours"), "failed", 1),
    ],
)
def test_how_a_run_ended_is_written(tmp_path, error, state, code):
    with pytest.raises(type(error)), RunFolder.open(tmp_path / "run") as folder:
        folder.progress(1, 2)
        raise error
    status = read_status(tmp_path / "run")
    assert (status["state"], status["exit_code"], status["error"]["type"]) == (state, code, type(error).__name__)
    with (
        pytest.raises(UsageError, match=f"`budwood adapt --resume -o {tmp_path}/run`"),
        RunFolder.open(tmp_path / "run"),
    ):
        pass
    with RunFolder.open(tmp_path / "run", resume=True):
        pass
    assert read_status(tmp_path / "run")["error"] is None


def test_a_run_that_failed_before_its_first_step_makes_room(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(StorageError), RunFolder.open(path) as folder:
        folder.append_event({"step": 0})
        raise StorageError("no rank")
    with RunFolder.open(path):
        assert read_events(path) == []
    for kept in ("checkpoints", "adapter"):  # a finished run whose resumption failed is no such run
        (path / kept).mkdir()
        with pytest.raises(StorageError), RunFolder.open(path, resume=True):
            raise StorageError("no room")
        with pytest.raises(UsageError, match="a run that is failed"):
            RunFolder(path).admit()
        (path / kept).rmdir()
    RunFolder(path).admit()


def test_to_ask_for_admission_touches_nothing(tmp_path):
    RunFolder(tmp_path / "run").admit()
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="no run to resume"):
        RunFolder(tmp_path / "run").admit(resume=True)


def test_the_command_that_goes_on_can_be_copied(tmp_path):
    assert RunFolder("runs/my run").resume_command == "budwood adapt --resume -o 'runs/my run'"


def test_a_finished_run_is_kept_unless_it_is_resumed_or_replaced(tmp_path):
    path = tmp_path / "run"
    with RunFolder.open(path) as folder:
        folder.write_metrics({"a": 1})
        folder.checkpoints.mkdir()
    with pytest.raises(UsageError, match="finished run"), RunFolder.open(path):
        pass
    with RunFolder.open(path, resume=True):
        assert read_metrics(path) == {"a": 1}
    with RunFolder.open(path, replace=True) as folder:
        assert read_metrics(path) == {} and not folder.checkpoints.exists()


@pytest.mark.parametrize("arguments", [{}, {"resume": True}, {"replace": True}])
def test_a_folder_that_is_no_run_is_left_alone(tmp_path, arguments):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="no run"), RunFolder.open(tmp_path, **arguments):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_there_must_be_a_run_to_resume(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="no run to resume"), RunFolder.open(path, resume=True):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"), RunFolder.open(tmp_path / "file"):
        pass


def test_a_second_process_is_refused(tmp_path):
    code = (
        "import sys; from budwood.errors import UsageError; from budwood.training.folder import RunFolder\n"
        "try:\n"
        "    with RunFolder.open(sys.argv[1], resume=True): sys.exit(1)\n"
        "except UsageError as error: print(error.got); sys.exit(error.exit_code)"
    )
    with RunFolder.open(tmp_path / "run"):
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True)
        assert done.returncode == 2 and f"another process is writing to {tmp_path / 'run'}" in done.stdout
        assert read_status(tmp_path / "run")["pid"] == os.getpid()


def test_a_process_on_another_machine_is_waited_for_only_while_it_lives(tmp_path):
    write_status(tmp_path / "run")
    with pytest.raises(UsageError, match="on elsewhere"), RunFolder.open(tmp_path / "run", resume=True):
        pass
    write_status(tmp_path / "run", heartbeat=(datetime.now(UTC) - timedelta(seconds=90)).isoformat())
    with RunFolder.open(tmp_path / "run", resume=True):
        pass


def test_what_killed_processes_left_is_swept(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        (folder.checkpoints / ".partial-x").mkdir(parents=True)
        (folder.path / ".partial-y").write_text("")
    with RunFolder.open(tmp_path / "run", resume=True) as folder:
        assert not list(folder.path.rglob(".partial-*"))


def test_a_session_within_a_session_is_the_same(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        with folder.session():
            pass
        assert read_status(tmp_path / "run")["state"] == "running"


# --- status


def test_a_run_whose_process_is_dead_is_interrupted(tmp_path):
    import socket

    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    for changes, state in [
        ({"host": socket.gethostname(), "pid": done.pid}, "interrupted"),
        ({"host": socket.gethostname()}, "running"),
        ({}, "running"),
        ({"heartbeat": (datetime.now(UTC) - timedelta(seconds=61)).isoformat()}, "interrupted"),
        ({"heartbeat": (datetime.now(UTC) - timedelta(seconds=61)).isoformat(), "state": "done"}, "done"),
    ]:
        write_status(tmp_path, **changes)
        assert read_status(tmp_path)["state"] == state


def test_the_heart_beats_while_a_step_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr("budwood.training.status.BEAT_S", 0.01)
    beaten, real = threading.Event(), storage.write_json

    def counting(path, value):
        real(path, value)
        if value["step"] == 5:
            beaten.set()

    heartbeat = Heartbeat(tmp_path)
    heartbeat.start()
    monkeypatch.setattr("budwood.storage.write_json", counting)
    heartbeat.progress(5, 10)
    assert beaten.wait(30)
    heartbeat.end(None)
    assert read_status(tmp_path)["step"] == 5


def test_a_folder_without_a_run_has_no_status(tmp_path):
    assert read_status(tmp_path) == read_status(tmp_path / "missing") == {}
    (tmp_path / "status.json").write_text("[]")
    with pytest.raises(StorageError, match=r"status\.json cannot be read"):
        read_status(tmp_path)


# --- events, metrics, environment


def test_events_are_appended_and_truncated(tmp_path):
    for step in range(5):
        append_event(tmp_path, {"step": step, "loss": float("nan") if step == 1 else step / 2})
    assert [event["loss"] for event in read_events(tmp_path)] == [0.0, None, 1.0, 1.5, 2.0]
    truncate_events(tmp_path, 2)
    append_event(tmp_path, {"step": 3})
    assert [event["step"] for event in read_events(tmp_path)] == [0, 1, 2, 3]
    truncate_events(tmp_path, None)
    assert read_events(tmp_path) == []


@pytest.mark.parametrize("torn", ['{"step": 2, "lo', '{"step": 2}', "\ufffd", ""])
def test_a_torn_last_line_is_ignored_and_goes_on_resume(tmp_path, torn):
    (tmp_path / "events.jsonl").write_text('{"step": 1}\n' + torn)
    assert read_events(tmp_path) == [{"step": 1}]
    truncate_events(tmp_path, 9)
    append_event(tmp_path, {"step": 2})
    assert read_events(tmp_path) == [{"step": 1}, {"step": 2}]


def test_another_broken_line_is_named(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"step": 1}\nrubbish\n{"step": 3}\n')
    with pytest.raises(StorageError, match="line 2"):
        read_events(tmp_path)


def test_metrics_are_added_up(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        folder.write_metrics({"a": 1, "b": 1})
        folder.write_metrics({"b": 2})
    assert read_metrics(tmp_path / "run") == {"a": 1, "b": 2}
    (tmp_path / "run" / "metrics.json").write_text("{")
    with pytest.raises(StorageError, match="metrics"):
        read_metrics(tmp_path / "run")


def test_the_environment_is_written_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with RunFolder.open(tmp_path / "run"):
        pass
    text = (tmp_path / "run" / "env.json").read_text()
    said = json.loads(text)
    assert said["packages"]["torch"] and said["cores"] >= 1 and said["torch_threads"] >= 1
    assert "hf_secret" not in text and str(tmp_path) not in text and os.path.expanduser("~") not in text


def test_a_full_disk_does_not_hide_how_a_run_ended(tmp_path, monkeypatch):
    with pytest.raises(NonFiniteError), RunFolder.open(tmp_path / "run"):
        monkeypatch.setattr("budwood.storage.write_json", lambda *_: (_ for _ in ()).throw(StorageError("full")))
        raise NonFiniteError("the loss is nan")
