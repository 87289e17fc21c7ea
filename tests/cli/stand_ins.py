"""A stand-in for the library below the command line: the same signatures, canned answers, and much noise.

Every function records its arguments in `CALLS`, raises `ERROR` if a test has set it, and chatters on standard output
and in logs, as libraries do.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import budwood
import budwood._request  # before its recipe is replaced
from budwood._prepare import Prior, PriorRequest
from budwood._request import Request
from budwood.compression.settings import Compression
from budwood.errors import DataError

CALLS: list[tuple[str, dict[str, Any]]] = []
ERROR: list[BaseException] = []
PROBLEMS: dict[str, Any] = {"problems": [], "problem_count": 0}
VERIFIED: list[bool] = []  # empty: every check holds


TOKENS = [
    {"id": 5, "text": "[b]in", "trained": False, "weight": 0.0},
    {"id": 7, "text": " out", "trained": True, "weight": 1.0},
    {"id": 2, "text": "!", "trained": True, "weight": 1.0},
]
METHOD = {
    "evidence": "examples",
    "tuner": "gift",
    "learns": "[φ], ψ " * 20,
    "keeps": ["merge", "export"],
    "paper": None,
}
METHODS = [{"method": f"method-{n}", **METHOD, "refuses": {"bank": "no"}} for n in range(500)]
MACHINE = {"versions": {"torch": "2.13.0"}, "device": "cpu", "cores": 2, "cache": Path("/c"), "packages": []}
MEASURED = {
    "adapted": {"nll": 0.01, "exact_match": 0.955},
    "base": {"nll": 2.5, "exact_match": 0.0},
    "rows": 200,
}


def last(name: str) -> dict[str, Any]:
    """Return the arguments of the last call of the function `name`."""
    return [arguments for called, arguments in CALLS if called == name][-1]


def _answer(name: str, arguments: dict[str, Any], value: Any) -> Any:
    CALLS.append((name, arguments))
    print("stray print")
    os.write(1, b"stray write\n")
    os.system("echo stray child")
    logging.getLogger("budwood.data").info("note of budwood")
    logging.getLogger("elsewhere").warning("warning of elsewhere")
    logging.getLogger("elsewhere").info("note of elsewhere")
    if ERROR:
        raise ERROR[0]
    return value


class Report:
    def __init__(self, ok: bool) -> None:
        self.ok = ok

    def to_dict(self) -> dict[str, Any]:
        check = {"name": "logits equal", "ok": self.ok, "value": 0.0 if self.ok else 0.5, "limit": 1e-5, "note": ""}
        return {"ok": self.ok, "checks": [{**check, "name": "keys equal", "ok": True, "value": None}, check]}


class ExportResult:
    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": Path("out/lora"),
            "kind": "lora",
            "bytes": 123456,
            "rank": 8,
            "modules": 210,
            "serve_lines": {"PEFT": "import peft\nload()", "vLLM": "vllm serve [x]"},
            "notes": ["Padded to rank 8."],
            "checks": Report(True).to_dict()["checks"],
        }


ROWS = {
    "train_rows": 450,
    "evaluation_rows": 50,
    "dropped": {"longer than max_length = 64 tokens": {"count": 3, "first": ["a.jsonl, line 3"]}},
    "remarks": {},
    "tokens": 9000,
    "supervised_tokens": 3000,
    "length_tokens": {"min": 5, "median": 20, "max": 60},
}
COMPARISON = [
    {"adapter": "this gift", "parameters": 147456, "bytes": 591000},
    {"adapter": "lora r=16, same layers", "parameters": 2442240, "bytes": 9790000},
]
SUMMARY = {
    "base": "smollm2",
    "method": "gift",
    "tuner": "gift",
    "trainable_params": 147456,
    "adapter_bytes": 591000,
    "rows": ROWS,
    "steps": 171,
    "epochs": 3.0,
    "stopped_early": False,
    "train_tokens": 27000,
    "supervised_tokens": 9000,
    "final_loss": float("nan"),
    "best_evaluation_loss": 0.25,
    "best_step": 150,
    "wall_s": 61.5,
    "tokens_per_s": 500.0,
    "peak_memory_mib": 900.4,
    "verify": {"ok": True, "checks": [{}, {}]},
    "comparison": COMPARISON,
}


class Run:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def summary(self) -> dict[str, Any]:
        return SUMMARY

    def export(self, kind: str, out: str | Path, *, dtype: str = "auto", force: bool = False) -> ExportResult:
        return _answer("export", locals(), ExportResult())

    def verify(self, *, portable: bool = True) -> Report:
        return _answer("verify", locals(), Report(not VERIFIED or VERIFIED[0]))


def adapt(
    model: str | None = None,
    evidence: Any = None,
    *,
    method: str | None = None,
    tuner: str | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Run:
    return _answer("adapt", locals(), Run(out or "runs/made up"))


def carry_out(
    request: Request,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Run:
    return _answer("carry_out", locals(), Run(out or "runs/made up"))


PREVIEW = {
    "out": "runs/x",
    "recipe": {
        "model": "smollm2",
        "method": "gift",
        "tuner": {"name": "lora"},
        "training": {"batch_size": 8, "accumulate": 1, "learning_rate": 0.003, "schedule": "linear"},
        "seed": 3,
    },
    "trainable_params": 147456,
    "rows": ROWS,
    "steps": 120,
    "warmup_steps": 5,
    "comparison": COMPARISON,
}


def preview(
    request: Request,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    return _answer("preview", locals(), PREVIEW)


PLAN = {
    "method": {"name": "gift", "built": True, "why": "the default for examples", "learns": "[φ]"},
    "command": "budwood adapt smollm2 --examples 'my rows.jsonl' -o runs/x",
    "model": {"reference": "smollm2", "class": "LlamaForCausalLM", "parameters": 134515008},
    "trainable_params": 147456,
    "adapter_bytes": 589824,
    "comparison": [{"adapter": "this gift", "parameters": 1}, {"adapter": "lora r=16", "parameters": 2442240}],
    "memory_mib": {"base": 513.1, "adapter": 2.2, "activations": 100.0, "logits": 5.0, "total": 620.3},
    "memory_batch": {"rows": 8, "length": 64, "trained": 20},
    "memory_formula": "a + b",
    "steps": 188,
    "tokens": 96000,
    "seconds": {"estimate": None, "why": "unknown: no finished run"},
    "exports": [{"export": "prompts", "possible": False, "reason": "no soft prompt"}],
}
NOT_BUILT = {
    "method": {"name": "taalm", "built": False, "why": "this version does not have it yet", "instead": "write rows"},
    "command": None,
    "model": PLAN["model"],
}


def plan(request: Request, *, out: str | Path | None = None) -> dict[str, Any]:
    built = getattr(request.evidence, "kind", None) != "documents"
    return _answer("plan", {"request": request, "out": out}, PLAN if built else NOT_BUILT)


class Conversation:
    """Repeats what it hears, in pieces, and counts the turns."""

    def __init__(self) -> None:
        self.turns = 0

    def ask(self, text: str, on_text: Callable[[str], None] = lambda piece: None) -> Any:
        self.turns += 1
        answer = f"{self.turns}: {text}\n[b]!"
        for piece in (answer[:3], answer[3:]):
            on_text(piece)
        if text == "too long":
            raise DataError("a prompt of 300 tokens")
        return _answer("ask", {"text": text}, SimpleNamespace(text=answer, ids=(1, 2), ended=True))

    def reset(self) -> None:
        self.turns = 0


def open_conversation(
    path: str | Path,
    *,
    base: str | None = None,
    system: str | None = None,
    max_new_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
    force: bool = False,
) -> Conversation:
    return _answer("open_conversation", locals(), Conversation())


def write_report(run: str | Path, out: str | Path | None = None) -> dict[str, Any]:
    return _answer("write_report", locals(), {"report": Path("runs/[a]/report/index.html"), "plots": []})


def open_run(path: str | Path, *, base: str | None = None, force: bool = False) -> Run:
    return _answer("open_run", locals(), Run(path))


def verify_run(path: str | Path, *, base: str | None = None, force: bool = False, portable: bool = True) -> Report:
    return _answer("verify_run", locals(), Report(not VERIFIED or VERIFIED[0]))


def methods_table() -> list[dict[str, Any]]:
    return _answer("methods_table", locals(), METHODS)


def doctor() -> dict[str, Any]:
    return _answer("doctor", locals(), MACHINE)


def check_data(paths: Any, *, model: str | None = None, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return _answer("check_data", locals(), {"rows": 3, "dropped": {"too_long": 1}, **PROBLEMS})


def show_data(path: str | Path, *, model: str | None = None, rows: slice = slice(0, 3)) -> list[dict[str, Any]]:
    return _answer("show_data", locals(), [{"origin": "rows.jsonl:1", "text": "[b]in out!", "tokens": TOKENS}])


def evaluate(
    path: str | Path,
    *,
    rows: Any,
    base: str | None = None,
    limit: int | None = None,
    force: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    return _answer("evaluate", locals(), MEASURED)


def generate(
    path: str | Path,
    prompt: str,
    *,
    base: str | None = None,
    system: str | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    force: bool = False,
) -> dict[str, Any]:
    return _answer("generate", locals(), {"text": '{"name":"Anna"} [x]', "tokens": 9, "seconds": 0.5})


def presets() -> dict[str, str]:
    return _answer("presets", locals(), {"paper": "As in [the] paper.", "lora": "The baseline."})


def outline(file: str | Path) -> dict[str, Any]:
    return _answer("outline", locals(), {"recipe": {"method": "gift", "seed": 0}, "missing": ["model"]})


def schema() -> dict[str, Any]:
    return _answer("schema", locals(), {"title": "Recipe", "type": "object"})


COMPRESSED = {
    "folder": "models/[x]",
    "engine": "budwood",
    "method": "gptq",
    "bits": 3,
    "group": 64,
    "symmetric": False,
    "sparsity": None,
    "pattern": None,
    "dtype": "float32",
    "source": {"reference": "smollm2", "revision": None, "fingerprint": "ab"},
    "calibration": {
        "files": ["a.md"],
        "windows": 128,
        "held_out": 14,
        "held_out_tokens": 3570,
        "tokens": 32768,
        "length": 256,
    },
    "size": {
        "weights": 134515008,
        "compressed_weights": 106168320,
        "layers": 210,
        "bits_per_weight": 3.296875,
        "bits_per_weight_of_model": 5.97,
        "mib_in_theory": 95.8,
        "mib_in_16_bits": 256.6,
    },
}
COMPRESSION_MEASURED = {
    "bytes": 538060672,
    "nll": {"before": 2.5, "after": 3.25},
    "layer_error": {"mean": 0.19, "largest": 0.45, "largest_at": "model.layers.0.mlp.down_proj", "zeros": 0.0},
    "layers": [{"name": "model.layers.0.mlp.down_proj", "role": "down", "weights": 1, "zeros": 0.0, "error": 0.45}],
}


def compress(
    model: str,
    settings: Compression,
    calibration: Sequence[Path] = (),
    *,
    out: str | Path,
    engine: str = "budwood",
    force: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    return _answer("compress", locals(), COMPRESSED | COMPRESSION_MEASURED)


def forecast(
    model: str,
    settings: Compression,
    calibration: Sequence[Path] = (),
    *,
    out: str | Path,
    engine: str = "budwood",
    force: bool = False,
) -> dict[str, Any]:
    return _answer("forecast", locals(), COMPRESSED)


SCORER = {"texts": 240, "validation_texts": 40, "body": "head", "steps": 300}


def make_prior(
    request: PriorRequest, out: Path, *, resume: bool = False, force: bool = False, progress: bool = True
) -> Prior:
    return _answer("make_prior", locals(), Prior(out, SCORER | {"alignment": 0.5, "uniform": 0.02}))


def outline_prior(request: PriorRequest, out: Path, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
    return _answer("outline_prior", locals(), {"out": str(out), **SCORER})


MODULES = {
    "_adapt": [adapt, carry_out, preview],
    "run": [open_run, verify_run],
    "_inspect": [methods_table, doctor, check_data, show_data, evaluate, generate],
    "recipe": [schema, presets, outline],
    "_plan": [plan],
    "_chat": [open_conversation],
    "_compress": [compress, forecast],
    "_prepare": [PriorRequest, make_prior, outline_prior],
    "reports.report": [write_report],
}


def modules() -> dict[str, ModuleType]:
    """Return the stand-in modules by their name in budwood."""
    made = {name: ModuleType(f"budwood.{name}") for name in MODULES}
    for name, functions in MODULES.items():
        vars(made[name]).update({function.__name__: function for function in functions})
    return made


def install() -> None:
    """Put the stand-ins in place for the rest of this process."""
    for name, module in modules().items():
        sys.modules[f"budwood.{name}"] = module
        setattr(budwood, name, module)
