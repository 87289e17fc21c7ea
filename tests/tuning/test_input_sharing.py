"""The edited input made once for q, k and v must be what each would have made: in every mode, and nothing is kept."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn

import tests.tiny as tiny
from budwood import GiftConfig
from budwood.tuning import shared_layer
from budwood.tuning.shared_layer import SharedLayer
from tests.tiny import checkpointed

IDS = torch.tensor([[5, 9, 200, 31, 77, 3], [8, 8, 120, 4, 91, 250]])
GROUPS = [["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]]
SEVEN = [*GROUPS[0], "o_proj", *GROUPS[1], "down_proj"]
SIDES = dict.fromkeys(SEVEN, "input") | {"down_proj": "output"}


def randomise(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".gift_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def llama(base: nn.Module | None = None, **settings: object) -> PeftModel:
    given = {"r": 4, "target_modules": SEVEN, "side": SIDES, "share": GROUPS, "task_type": "CAUSAL_LM"} | settings
    return randomise(get_peft_model(base if base is not None else tiny.llama(), GiftConfig(**given)).eval())


def alone(model: nn.Module) -> nn.Module:
    """Turn sharing of the input off."""
    for layer in layers(model):
        layer.readers.clear()
    return model


def layers(model: nn.Module) -> list[SharedLayer]:
    return [module for module in model.modules() if isinstance(module, SharedLayer)]


def gradients(model: nn.Module, ids: Tensor = IDS) -> tuple[Tensor, dict[str, Tensor]]:
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def edits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each low-rank map that is computed."""
    calls: list[int] = []
    plain = shared_layer.add_low_rank
    monkeypatch.setattr(shared_layer, "add_low_rank", lambda *args: (calls.append(1), plain(*args))[1])
    return calls


# --- equal to off -------------------------------------------------------------------------------------------------


VARIANTS: dict[str, Callable[[], PeftModel]] = {
    "groups": llama,
    "all": lambda: llama(target_modules=SEVEN[:-1], side="input", share="all"),
    "both sides": lambda: llama(tiny.llama(num_key_value_heads=4), side="both", share=GROUPS),
    "depth": lambda: llama(share_depth=False),
    "bf16": lambda: llama(tiny.llama().to(torch.bfloat16)),
}


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_are_bit_equal_to_off_and_gradients_equal(variant: str, checkpoints: bool, edits):
    together, apart = VARIANTS[variant](), alone(VARIANTS[variant]())
    counts = []
    results = []
    for model in (together, apart):
        edits.clear()
        model = checkpointed(model) if checkpoints else model
        results.append(gradients(model.train()))
        counts.append(len(edits))
    assert counts[0] < counts[1]
    assert torch.equal(results[0][0], results[1][0])
    tolerance = {"rtol": 0.05, "atol": 0.02} if variant == "bf16" else {}
    for name, gradient in results[1][1].items():
        torch.testing.assert_close(results[0][1][name], gradient, **tolerance)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, edits):
    together, apart = llama(), alone(llama())
    with mode():
        first = together(input_ids=IDS).logits
        used = len(edits)
        assert torch.equal(first, apart(input_ids=IDS).logits)
    assert used == (2 * 4 if mode is torch.no_grad else 2 * 7)  # inference tensors do not count their versions


def test_under_autocast():
    together, apart = llama(), alone(llama())
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(together(input_ids=IDS).logits, apart(input_ids=IDS).logits)


def test_generation_is_equal_to_off():
    settings = dict(max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(IDS))
    made = [model.generate(input_ids=IDS, **settings) for model in (llama(), alone(llama()))]
    assert torch.equal(*made)


@pytest.mark.parametrize("active", [["default"], ["second"], ["default", "second"]])
def test_two_active_adapters_do_not_share_and_are_equal_to_off(active: list[str], edits):
    logits, counts = [], []
    for prepare in (lambda model: model, alone):
        model = llama()
        second = GiftConfig(r=3, target_modules=SEVEN, side=SIDES, share=GROUPS, task_type="CAUSAL_LM")
        model.add_adapter("second", second)
        prepare(randomise(model)).base_model.set_adapter(active)
        edits.clear()
        with torch.no_grad():
            logits.append(model(input_ids=IDS).logits)
        counts.append(len(edits))
    assert torch.equal(*logits)
    assert (counts[0] == counts[1]) == (len(active) == 2)


def test_a_mixed_batch_does_not_share(edits):
    with torch.no_grad():
        mixed = llama()(input_ids=IDS, adapter_names=["default", "__base__"]).logits
        assert len(edits) == 2 * 7
        assert torch.equal(mixed, alone(llama())(input_ids=IDS, adapter_names=["default", "__base__"]).logits)


# --- dropout: one draw for those who share --------------------------------------------------------------------------


class Block(nn.Module):
    """Reads x three times; `between` happens after the first."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, width) for width in (8, 8, 4))
        self.between: Callable[[Tensor], None] = lambda x: None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q = self.q(x)
        self.between(x)
        return q, self.k(x), self.v(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.block = Block()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.block(x + 0)


def net(**settings: object) -> tuple[PeftModel, Block]:
    names = ["q", "k", "v"]
    model = randomise(get_peft_model(Net(), GiftConfig(r=2, target_modules=names, share=[names], **settings)).eval())
    return model, model.get_base_model().block


def inputs_seen(block: Block) -> list[weakref.ref[Tensor]]:
    """Filled with the input of each base layer as it runs."""
    seen: list[weakref.ref[Tensor]] = []
    for layer in (block.q, block.k, block.v):
        layer.base_layer.register_forward_pre_hook(lambda module, args: seen.append(weakref.ref(args[0])))
    return seen


X = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))


def test_those_who_share_see_one_draw_of_dropout():
    model, block = net(gift_dropout=0.5)
    generator = block.q.gift_in["default"]
    torch.manual_seed(4)
    got = model.train()(X)
    torch.manual_seed(4)
    edited = X + nn.functional.dropout(X, 0.5) @ generator.psi.T @ generator.phi.T
    for output, layer in zip(got, (block.q, block.k, block.v)):
        torch.testing.assert_close(output, layer.base_layer(edited))


def test_dropout_is_drawn_again_alike_under_checkpointing():
    results = []
    for prepare in (lambda model: model, checkpointed):
        model = prepare(llama(gift_dropout=0.3)).train()
        torch.manual_seed(5)
        results.append(gradients(model))
    assert torch.equal(results[0][0], results[1][0])
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient)


# --- what makes a stored input the wrong one ------------------------------------------------------------------------


def test_an_input_changed_in_place_is_read_anew(edits):
    model, block = net()
    block.between = lambda x: x.mul_(2)
    with torch.no_grad():
        got = model(X)
        assert len(edits) == 2
        apart = alone(model)(X)
    assert all(map(torch.equal, got, apart))


def test_another_tensor_at_the_same_address_is_not_taken_for_the_old_one():
    model, block = net()

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        first = block.q(x * 1)  # dies at once; the allocator gives its memory to the next
        return first, block.k(x * 2), block.v(x * 3)

    block.forward = forward
    with torch.no_grad():
        got = model(X)
        assert all(map(torch.equal, got, alone(model)(X)))


def test_another_grad_mode_or_adapter_midway_is_read_anew(edits):
    model, block = net()
    model.add_adapter("second", GiftConfig(r=2, target_modules=["q", "k", "v"], share=[["q", "k", "v"]]))
    randomise(model)
    block.between = lambda x: torch.set_grad_enabled(True)
    with torch.no_grad():
        q, k, _ = model(X)
    assert not q.requires_grad and k.requires_grad and len(edits) == 2
    edits.clear()
    block.between = lambda x: model.base_model.set_adapter("second")
    _, k, v = model(X)
    assert len(edits) == 2
    block.between = lambda x: None
    _, k_again, v_again = alone(model)(X)
    assert torch.equal(k, k_again) and torch.equal(v, v_again)


# --- nothing is kept ------------------------------------------------------------------------------------------------


def test_the_last_reader_drops_the_input_and_nothing_is_kept():
    model, block = net()
    seen = inputs_seen(block)
    slots: list[int] = []
    block.v.register_forward_hook(lambda *_: slots.append(len(block.q.input_scope._thread.slots)))
    with torch.no_grad():
        model(X)
    assert len(seen) == 3 and slots == [0]
    assert all(ref() is None for ref in seen)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_midway_leaves_nothing_and_the_next_call_is_right(error, edits):
    model, block = net()
    seen = inputs_seen(block)
    wanted = model(X)

    def fail(x: Tensor) -> None:
        raise error

    block.between = fail
    seen.clear()
    with pytest.raises(error):
        model(X.clone().requires_grad_())
    if error is RuntimeError:  # a KeyboardInterrupt passes the hooks by; the next call clears up
        gc.collect()
        assert [ref() for ref in seen] == [None]
    block.between = lambda x: None
    assert all(map(torch.equal, model(X), wanted))
    gc.collect()
    assert seen[0]() is None


def test_checkpointing_stops_its_second_pass_early_and_leaves_nothing():
    model = checkpointed(llama()).train()
    gradients(model)
    scopes = {layer.input_scope for layer in layers(model) if layer.input_scope}
    assert len(scopes) == 4 and all(scope._thread.slots is None for scope in scopes)


def test_a_layer_called_on_its_own_keeps_nothing(edits):
    _, block = net()
    with torch.no_grad():
        block.q(X)
        block.q.gift_in["default"].phi.mul_(2)
        assert torch.equal(block.q(X), block.q(X)) and len(edits) == 3


# --- threads, copies, unloading -------------------------------------------------------------------------------------


def test_threads_do_not_see_each_other():
    model = llama()
    batches = [torch.randint(0, 256, (2, 6), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    with torch.no_grad():
        wanted = [model(input_ids=ids).logits for ids in batches]
    failures: list[int] = []
    start = threading.Barrier(len(batches))

    def work(index: int) -> None:
        start.wait()
        for _ in range(10):
            with torch.no_grad():
                if not torch.equal(model(input_ids=batches[index]).logits, wanted[index]):
                    failures.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_copies_share_among_themselves_only(edits):
    model = llama()
    twin = copy.deepcopy(model)
    scopes = [{layer.input_scope for layer in layers(one) if layer.input_scope} for one in (model, twin)]
    assert len(scopes[0]) == len(scopes[1]) == 4 and not scopes[0] & scopes[1]
    with torch.no_grad():
        twin(input_ids=IDS)
    assert len(edits) == 2 * 4
    twin.unload()
    assert count_hooks(twin) == 0 and count_hooks(model) == 8


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("leave", ["unload", "merge_and_unload"])
def test_unloading_takes_the_hooks_along(leave: str):
    model = llama()
    assert count_hooks(model) == 8
    plain = getattr(model, leave)()
    assert count_hooks(plain) == 0 and plain(input_ids=IDS).logits.shape == (2, 6, 259)


def test_maps_of_one_layer_each_need_no_hook():
    assert count_hooks(llama(share="type")) == 0
