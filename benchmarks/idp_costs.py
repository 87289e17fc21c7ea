"""What a bank of soft prompts costs at run time: the choice, a decoded token, and latency beside LoRA and a prefix.

    python benchmarks/idp_costs.py [--models smollm2 smollm2+int8wo] [--prompts 1 2 4 8] [--repeats 10] [--seeds 0]
                                   [--threads 1] [--device auto] [--dtype bfloat16] [--quick]
                                   [-o benchmarks/results/idp_costs.json]

Prompts are vectors of the vocabulary and texts random tokens: neither decides a time. All is measured in turn, round
by round (A B A B …); figures are medians with their quartiles, ratios those of the rounds.

    selectors   time of a choice over that of the text's forward pass behind one cached prompt, for each selector and
                number of prompts m. Layer 0 is one of L, so `paper` should cost 1/L, and 2 % for what surrounds it
    decoding    a token behind the bank, whose rows have prompts of n/2 and n vectors, against one behind a single
                prompt of n; beside it what hangs on no clock: forward passes, and slots in the cache after each
    latency     the first token (choice and prompt included) and each further one: the base, one prompt, the bank, a
                prefix of as many vectors, and LoRA of rank 4, not merged, on queries and values and on all layers.
                `lora / bank` says whether LoRA takes twice the bank's time, as was claimed for the paper's method
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning threads starve other processes
sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this folder is `benchmarks`

import torch
from benchmarks._speed import Stamps, cache_slots, in_turn, milliseconds, ratios, timed
from benchmarks._table import RESULTS, machine, say
from peft import PromptTuningConfig
from torch import Tensor
from transformers import PreTrainedModel

from budwood.errors import BudwoodError
from budwood.methods.idp.bank import PromptBank
from budwood.methods.idp.runtime import Prompt
from budwood.methods.idp.selectors import AttentionSelector, LikelihoodSelector, RouterSelector, Selector
from budwood.models import load_base
from budwood.storage import write_json
from budwood.tuning.attach import attach
from budwood.tuning.registry import find_tuner
from budwood.tuning.soft_prompts import SoftPrompt

MARGIN = 0.02  # of a pass, for what surrounds the one layer that `paper` scores
FIRST = 16  # tokens that the short form of the likelihood reads
CONTEXTS = 8  # to calibrate on; how many does not change what a choice costs
LORA = {"lora r=4 q v": ["q", "v"], "lora r=4 all": ["q", "k", "v", "o", "gate", "up", "down"]}


@dataclass(frozen=True, eq=False)
class Bench:
    """One model, and the sizes of what it reads.

    Attributes:
        load: returns another copy of it.
        ids: the texts, (rows, t).
    """

    model: PreTrainedModel
    load: Callable[[], PreTrainedModel]
    ids: Tensor
    tokens: int
    new: int
    repeats: int
    seed: int

    @property
    def layers(self) -> int:
        """The number L of layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    def bank(self, lengths: Sequence[int], selector: Selector | None = None) -> PromptBank:
        """Return a ready bank of prompts of these lengths."""
        draw = torch.Generator().manual_seed(self.seed)
        table = self.model.get_input_embeddings().weight
        prompts = []
        for number, n in enumerate(lengths):
            rows = torch.randint(len(table), (n,), generator=draw).to(table.device)
            prompts.append(
                Prompt(f"p{number}", table[rows].detach().float(), PromptTuningConfig(num_virtual_tokens=n))
            )
        bank = PromptBank(self.model, prompts, selector=selector or LikelihoodSelector())
        if len(bank) > 1:
            bank.calibrate(torch.randint(len(table), (CONTEXTS, 32), generator=draw).tolist())
        return bank

    def generate(self, model: Any, **options: Any) -> list[float]:
        """Continue the texts and return the seconds to the first token and to each further one."""
        stamps = Stamps(self.ids.device)
        model.generate(
            input_ids=self.ids,
            attention_mask=torch.ones_like(self.ids),
            max_new_tokens=self.new,
            min_new_tokens=self.new,
            do_sample=False,
            pad_token_id=0,
            logits_processor=[stamps],
            **options,
        )
        return stamps.times


def selectors_of(layers: int) -> dict[str, Selector]:
    """Return what chooses, by name, for a model of so many layers."""
    lower = tuple(range(math.ceil(layers / 3)))
    return {
        "paper": AttentionSelector.paper(),
        "attention": AttentionSelector(),
        "attention, lower third": AttentionSelector(layers=lower),
        "attention, all layers": AttentionSelector(layers=tuple(range(layers))),
        "router": RouterSelector(),
        f"likelihood, {FIRST} tokens": LikelihoodSelector(tokens=FIRST),
        "likelihood": LikelihoodSelector(),
    }


def selector_costs(bench: Bench, prompts: Sequence[int]) -> list[dict[str, Any]]:
    """Return what each selector's choice costs for each number of prompts, as a share of a prompt's forward pass."""
    found, first = [], torch.zeros(len(bench.ids), dtype=torch.long)
    for m in (m for m in prompts if m > 1):
        banks = {name: bench.bank([bench.tokens] * m, one) for name, one in selectors_of(bench.layers).items()}
        single = next(iter(banks.values()))
        works: dict[str, Callable[[], Any]] = {
            "one prompt": lambda bank=single: bank(bench.ids, selection=first, logits_to_keep=1)
        }
        works |= {name: lambda bank=bank: bank.scores(bench.ids) for name, bank in banks.items()}
        with torch.no_grad():
            taken = in_turn({name: timed(work, bench.ids.device) for name, work in works.items()}, bench.repeats)
        for name, seconds in taken.items():
            found.append({"m": m, "what": name, "ms": milliseconds(seconds)})
            if name != "one prompt":
                found[-1]["share"] = ratios(seconds, taken["one prompt"])
        limit = 1 / bench.layers + MARGIN
        share = next(one["share"]["median"] for one in found if one["m"] == m and one["what"] == "paper")
        found.append({"m": m, "what": "limit of paper", "share": round(limit, 4), "kept": share <= limit})
    return found


def decoding_costs(bench: Bench, m: int) -> dict[str, Any]:
    """Return what a token costs behind a bank and behind one prompt, and the counts of both."""
    rows = len(bench.ids)
    lengths = [bench.tokens if i % 2 == 0 else max(1, bench.tokens // 2) for i in range(max(2, m))]
    bank, one = bench.bank(lengths), bench.bank(lengths[:1])
    mixed = [row % len(bank) for row in range(rows)] if rows > 1 else [1]
    works = {
        "one prompt": lambda: bench.generate(one, selection=[0] * rows)[1:],
        "bank": lambda: bench.generate(bank, selection=mixed)[1:],
    }
    counts = {name: cache_slots(bench.model, work) for name, work in works.items()}
    taken = {name: [sum(steps) / len(steps) for steps in told] for name, told in in_turn(works, bench.repeats).items()}
    expected = [bench.tokens + bench.ids.shape[1] + step for step in range(bench.new)]
    return {
        "m": len(bank),
        "ms_a_token": {name: milliseconds(seconds) for name, seconds in taken.items()},
        "bank / one prompt": ratios(taken["bank"], taken["one prompt"]),
        "forwards": {name: len(slots) for name, slots in counts.items()},
        "slots_after_each": counts,
        "slots_are_n_max_t_step": all(slots == expected for slots in counts.values()),
    }


def latency(bench: Bench, prompts: Sequence[int]) -> dict[str, Any]:
    """Return the time to the first token and of each further one, for all systems in turn."""
    prefix = find_tuner("prefix")
    attached = attach(bench.model, prefix, prefix.settings(tokens=bench.tokens), seed=bench.seed).eval()
    systems: dict[str, Any] = {"base": bench.model, "prefix": SoftPrompt(attached)}
    for m in prompts:
        systems["one prompt" if m == 1 else f"bank m={m}, likelihood"] = bench.bank([bench.tokens] * m)
        if m > 1:
            systems[f"bank m={m}, paper"] = bench.bank([bench.tokens] * m, AttentionSelector.paper())
    lora = find_tuner("lora")
    for name, roles in LORA.items():
        settings = lora.settings(rank=4, alpha=36, targets=roles)
        systems[name] = attach(bench.load(), lora, settings, seed=bench.seed).eval()
    told = in_turn({name: lambda one=one: bench.generate(one) for name, one in systems.items()}, bench.repeats)
    first = {name: [times[0] for times in of] for name, of in told.items()}
    further = {name: [sum(times[1:]) / len(times[1:]) for times in of] for name, of in told.items()}
    found: dict[str, Any] = {
        name: {
            "first_token_ms": milliseconds(first[name]),
            "further_token_ms": milliseconds(further[name]),
            "first / base": ratios(first[name], first["base"]),
            "further / base": ratios(further[name], further["base"]),
        }
        for name in systems
    }
    bank = next((name for name in systems if name.startswith("bank")), "one prompt")
    return found | {
        f"{name} / {bank}": {
            "first": ratios(first[name], first[bank]),
            "further": ratios(further[name], further[bank]),
            "twice": ratios(further[name], further[bank])["low"] >= 2,
        }
        for name in LORA
    }


def measure(reference: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of one model and seed."""

    def load() -> PreTrainedModel:
        return load_base(reference, dtype=args.dtype, device=args.device).model.eval()

    model = load()
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.vocab_size, (args.rows, args.text), generator=draw).to(model.device)
    bench = Bench(model, load, ids, args.tokens, args.new, args.repeats, seed)
    return {
        "model": reference,
        "seed": seed,
        "dtype": str(model.dtype).removeprefix("torch."),
        "layers": bench.layers,
        "selectors": selector_costs(bench, args.prompts),
        "decoding": decoding_costs(bench, max(args.prompts)),
        "latency": latency(bench, args.prompts),
    }


def parser() -> argparse.ArgumentParser:
    """Return the arguments of the command."""
    made = argparse.ArgumentParser(prog="benchmarks/idp_costs.py", description="what a bank of prompts costs")
    made.add_argument("--models", nargs="+", default=["smollm2", "smollm2+int8wo"], help="a dense and a quantised one")
    made.add_argument("--prompts", type=int, nargs="+", default=[1, 2, 4, 8], metavar="M", help="prompts of a bank")
    made.add_argument("--tokens", type=int, default=16, help="vectors n of a prompt")
    made.add_argument("--text", type=int, default=128, help="tokens of a text")
    made.add_argument("--rows", type=int, default=2, help="texts at once")
    made.add_argument("--new", type=int, default=16, help="tokens to write")
    made.add_argument("--repeats", type=int, default=10, help="rounds")
    made.add_argument("--seeds", type=int, nargs="+", default=[0])
    made.add_argument("--threads", type=int, default=torch.get_num_threads())
    made.add_argument("--device", default="auto")
    made.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    made.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, says nothing")
    made.add_argument("-o", "--out", type=Path, default=RESULTS / "idp_costs.json")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the file."""
    args = parser().parse_args(arguments)
    if args.quick:
        args.prompts, args.tokens, args.text, args.new, args.repeats = [1, 3], 4, 12, 4, 2
    torch.set_num_threads(args.threads)
    sizes = {name: getattr(args, name) for name in ("prompts", "tokens", "text", "rows", "new", "repeats", "seeds")}
    facts = machine("cpu", "devices", "python", "torch_threads", "git", packages=("torch", "transformers", "peft"))
    result: dict[str, Any] = {"benchmark": "idp_costs", "quick": args.quick, "machine": facts, **sizes}
    result["load_before"] = round(os.getloadavg()[0], 1)
    say(json.dumps(result))
    try:
        result["runs"] = [measure(model, seed, args) for model in args.models for seed in args.seeds]
    except BudwoodError as error:
        say(str(error))
        return error.exit_code
    result["load_after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(result["runs"], indent=2))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
