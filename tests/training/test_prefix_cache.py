import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from budwood.errors import NotSupportedError, StorageError
from budwood.training.blocks import find_blocks
from budwood.training.loss import language_model, target_logits, weighted_nll
from budwood.training.prefix_cache import PrefixCache
from tests.training.rows import collate, make_rows
from tests.training.stacks import STACKS, top


def build(model, rows, folder, **changes):
    return PrefixCache.build(model, rows, collate, folder, **({"batch_size": 4} | changes))


def computed(model) -> list[int]:
    """The indices of blocks whose attention runs from now on."""
    _, blocks = find_blocks(language_model(model))
    seen: list[int] = []
    for index, block in enumerate(blocks):
        inner = next(
            module for name, module in block.named_modules() if name.rpartition(".")[2].endswith(("attn", "attention"))
        )
        inner.register_forward_hook(lambda *_, index=index: seen.append(index))
    return seen


@pytest.mark.parametrize("name", STACKS)
def test_logits_loss_and_gradients_are_those_of_the_whole_model(name, tmp_path):
    """Rows of a batch are stored from batches of another composition, so equal to rounding."""
    rows, found = make_rows(9), []
    for cached in (False, True):
        model = top(name, (2, 3))
        cache = build(model, rows, tmp_path)
        batch = collate([rows[i] for i in (7, 2, 5)])
        if cached:
            assert cache.deviation(model, batch) < 1e-5
            with cache.attached(model):
                seen = computed(model)
                total, weight = weighted_nll(model, batch)
            assert set(seen) == {2, 3}
        else:
            total, weight = weighted_nll(model, batch)
        (total / weight).backward()
        found.append([total, *(p.grad for p in model.parameters() if p.requires_grad)])
    for whole, cached in zip(*found):
        torch.testing.assert_close(cached, whole, rtol=1e-5, atol=1e-5)


def test_the_same_batch_gives_the_same_bits(tmp_path):
    rows, model = sorted(make_rows(4), key=lambda row: -len(row.input_ids)), top()
    assert build(model, rows, tmp_path).deviation(model, collate(rows)) == 0.0


def test_bfloat16_is_near(tmp_path):
    model, rows = top(base=top().unload().to(torch.bfloat16)), make_rows(9)
    deviation = build(model, rows, tmp_path).deviation(model, collate(rows[3:6]))
    assert deviation < 2e-2


def test_what_is_not_stored_runs_through_the_whole_model(tmp_path):
    rows, model = make_rows(6), top()
    cache = build(model, rows[:4], tmp_path)
    batch = collate(rows[:2])
    packed = {name: batch[name] for name in ("input_ids", "attention_mask")}
    packed["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"]) + 3
    wanted, unpacked = target_logits(model, collate(rows[2:]))[0], model(**packed, use_cache=False).logits
    prompt = torch.tensor([rows[0].input_ids])
    answer = model.generate(input_ids=prompt, max_new_tokens=4, do_sample=False)
    states = model(prompt, use_cache=False, output_hidden_states=True).hidden_states
    with cache.attached(model):
        assert torch.equal(target_logits(model, collate(rows[2:]))[0], wanted)
        assert torch.equal(model(**packed, use_cache=False).logits, unpacked)
        assert torch.equal(model.generate(input_ids=prompt, max_new_tokens=4, do_sample=False), answer)
        again = model(prompt, use_cache=False, output_hidden_states=True).hidden_states
    assert all(torch.equal(a, b) for a, b in zip(states, again)) and cache.batches == 0


def test_rows_padded_on_the_left_are_not_served(tmp_path):
    rows, model = make_rows(3), top()
    batch = collate(rows)
    turned = {key: [torch.tensor(getattr(r, key)) for r in rows] for key in ("input_ids", "labels", "loss_weights")}
    turned["attention_mask"] = [torch.ones_like(ids) for ids in turned["input_ids"]]
    left = {key: pad_sequence(value, batch_first=True, padding_side="left") for key, value in turned.items()}
    cache = build(model, rows, tmp_path)
    assert cache.deviation(model, batch) < 1e-5
    with pytest.raises(NotSupportedError, match="not served"):
        cache.deviation(model, left)


def test_the_model_is_as_it_was_after_the_block_and_after_an_exception(tmp_path):
    rows, model = make_rows(4), top()
    cache = build(model, rows, tmp_path)

    def fail(*_):
        raise KeyError("midway")

    with pytest.raises(KeyError), cache.attached(model):
        hook = language_model(model).lm_head.register_forward_pre_hook(fail)
        weighted_nll(model, collate(rows))
    hook.remove()
    assert cache._current is None
    modules = list(model.modules())
    assert not any("forward" in m.__dict__ or m._forward_hooks or m._forward_pre_hooks for m in modules)
    assert len(computed(model)) == 0


def test_states_are_found_again_and_are_those_of_these_weights_and_rows(tmp_path):
    rows, model = make_rows(4), top()
    first = build(model, rows, tmp_path)
    stamp = (first.path / "states.bin").stat().st_mtime_ns
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).add_(1.0)  # the adapter above does not matter
    again = build(model, [*rows, rows[0]], tmp_path)  # nor does a row that is there twice
    assert again.path == first.path and (again.path / "states.bin").stat().st_mtime_ns == stamp
    assert build(model, rows[:3], tmp_path).path != first.path
    assert build(top("llama", (2, 3)), rows, tmp_path).path != first.path
    with torch.no_grad():
        language_model(model).get_input_embeddings().weight[3, 0] += 1e-3
    assert build(model, rows, tmp_path).path != first.path


def test_a_file_cut_short_is_written_again(tmp_path):
    rows, model = make_rows(4), top()
    file = build(model, rows, tmp_path).path / "states.bin"
    size = file.stat().st_size
    assert size == sum(len(row.input_ids) for row in rows) * 32 * 4
    with file.open("r+b") as handle:
        handle.truncate(size // 2)
    assert build(model, rows, tmp_path).deviation(model, collate(rows)) < 1e-5


def test_too_large_a_file_is_refused_before_it_is_computed(tmp_path):
    with pytest.raises(StorageError, match="GiB") as caught:
        build(top(), make_rows(4), tmp_path, limit_bytes=1000)
    assert "cache_prefix" in str(caught.value) and not any(tmp_path.iterdir())
