import copy
import logging

import pytest
import torch
from peft import (
    LoraConfig,
    MultitaskPromptTuningConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import MistralConfig, MistralForCausalLM
from transformers.utils import logging as transformers_logging

from budwood.errors import DataError, NotSupportedError, UsageError
from budwood.evals.generation import Sampling, generate, stream
from tests import tiny
from tests.evals.conftest import make_row
from tests.methods.idp.banks import make_bank, plain_greedy

PROMPTS = [[65, 66, 67, 68, 69, 70, 71], [80], [90, 91, 92], [65, 66], list(range(40, 70)), [1, 2, 3]]


def naive(model, prompt: list[int], ends: frozenset[int], limit: int) -> list[int]:
    """Greedy decoding by the definition: a whole forward pass a token, no cache, no padding."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(limit):
            token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            if token in ends:
                break
            ids.append(token)
    return ids[len(prompt) :]


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
@pytest.mark.parametrize("batch_size", [1, 2, 6, "auto"])
def test_ragged_prompts_equal_the_definition_at_every_batch_size(make, batch_size, renderer):
    model = make()
    found = generate(model, PROMPTS, renderer, max_new_tokens=12, batch_size=batch_size)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert list(one.ids) == naive(model, prompt, renderer.end_token_ids, 12)


def test_stops_at_any_end_token(trained, renderer, learned_rows):
    prompts = [renderer.prompt(row) for row in learned_rows]
    found = generate(trained, prompts, renderer, max_new_tokens=20)
    assert [one.text for one in found] == [row.references[0] for row in learned_rows]
    assert all(one.ended and not set(one.ids) & renderer.end_token_ids for one in found)

    class Early:
        """The same renderer, for which "a" ends an answer too."""

        end_token_ids = renderer.end_token_ids | {renderer.tokenizer.convert_tokens_to_ids("a")}
        decode = staticmethod(renderer.decode)

    early = generate(trained, prompts, Early(), max_new_tokens=20)
    assert [one.ids for one in early if one.ended] == [tuple(_cut(one.ids, Early.end_token_ids)) for one in found]


def _cut(ids, ends):
    for token in ids:
        if token in ends:
            return
        yield token


def test_the_limit_is_kept_and_told(trained, renderer, learned_rows):
    (one,) = generate(trained, [renderer.prompt(learned_rows[0])], renderer, max_new_tokens=2)
    assert (one.text, len(one.ids), one.ended) == ("Li", 2, False)


def test_prompts_near_the_end_of_the_context_get_what_room_there_is(renderer):
    model = tiny.gpt2()  # a position past 256 would be an index error
    long = [7 + i % 50 for i in range(253)]
    found = generate(model, [long, [65]], renderer, max_new_tokens=8, batch_size=2)
    assert [len(one.ids) for one in found] == [3, 8]
    assert list(found[0].ids) == naive(model, long, renderer.end_token_ids, 3)


def test_the_models_own_generation_config_takes_no_part_and_stays(renderer):
    model = tiny.llama()
    plain = generate(model, PROMPTS, renderer, max_new_tokens=8)
    model.generation_config.update(repetition_penalty=5.0, do_sample=True, temperature=3.0, max_length=9, top_k=2)
    kept, before = model.generation_config, copy.deepcopy(model.generation_config)
    assert generate(model, PROMPTS, renderer, max_new_tokens=8) == plain
    assert model.generation_config is kept and kept.to_dict() == before.to_dict()


def test_no_warning_of_transformers(renderer):
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    transformers_logging.get_logger("transformers").addHandler(handler)
    transformers_logging.warning_once.cache_clear()  # what another test was told is told again
    try:
        model = get_peft_model(tiny.llama(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
        model.generation_config.temperature, model.generation_config.max_length = 0.5, 9
        generate(model, PROMPTS, renderer, max_new_tokens=4)
        generate(model, PROMPTS[:1], renderer, max_new_tokens=4, sampling=Sampling(0.7, 5, 0.9))
    finally:
        transformers_logging.get_logger("transformers").removeHandler(handler)
    assert seen == []


def test_an_adapter_is_used(renderer):
    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False, r=8)
    model = get_peft_model(tiny.llama(), config)
    found = generate(model, PROMPTS, renderer, max_new_tokens=8, batch_size=3)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert list(one.ids) == naive(model.eval(), prompt, renderer.end_token_ids, 8)
    assert found != generate(tiny.llama(), PROMPTS, renderer, max_new_tokens=8)


def test_the_cache_is_used(renderer):
    model = tiny.llama()
    lengths: list[int] = []
    model.model.layers[0].register_forward_hook(lambda m, inputs, output: lengths.append(inputs[0].shape[1]))
    generate(model, [[65, 66, 67]], renderer, max_new_tokens=4)
    assert lengths == [3, 1, 1, 1]


@pytest.mark.parametrize("batch_size", [1, 4, "auto"])
def test_sampling_depends_on_the_seed_only(batch_size, renderer):
    model, sampling = tiny.llama(), Sampling(temperature=1.0, seed=5)
    reference = generate(model, PROMPTS, renderer, max_new_tokens=10, batch_size=2, sampling=sampling)
    state = torch.get_rng_state()
    again = generate(model, PROMPTS, renderer, max_new_tokens=10, batch_size=batch_size, sampling=sampling)
    assert again == reference
    assert torch.equal(torch.get_rng_state(), state)
    other = generate(model, PROMPTS, renderer, max_new_tokens=10, sampling=Sampling(seed=6))
    assert other != reference


def test_equal_prompts_are_sampled_apart(renderer):
    found = generate(tiny.llama(), [[65]] * 4, renderer, max_new_tokens=8, sampling=Sampling())
    assert len({one.ids for one in found}) == 4


@pytest.mark.parametrize("sampling", [Sampling(0.7, seed=1), Sampling(top_k=3, seed=2), Sampling(top_p=0.6, seed=3)])
def test_sampled_tokens_follow_the_softmax(sampling, renderer):
    model, count = tiny.llama(initializer_range=0.02), 1500
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[65]])).logits[0, -1]
    found = generate(model, [[65]] * count, renderer, max_new_tokens=1, batch_size=500, sampling=sampling)
    drawn = torch.tensor([one.ids[0] if one.ids else 256 for one in found]).bincount(minlength=259) / count
    expected = _distribution(logits.double(), sampling)
    assert drawn[expected == 0].sum() == 0
    error = (expected * (1 - expected) / count).sqrt()
    assert ((drawn - expected).abs() <= 5 * error + 1e-9).all()


def _distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    p = (logits / sampling.temperature).softmax(-1)
    order = p.argsort(descending=True)
    keep = len(p)
    if sampling.top_k is not None:
        keep = sampling.top_k
    if sampling.top_p is not None:
        keep = int((p[order].cumsum(0) < sampling.top_p).sum()) + 1
    kept = torch.zeros_like(p)
    kept[order[:keep]] = p[order[:keep]]
    return kept / kept.sum()


def test_a_low_temperature_is_greedy(renderer):
    model = tiny.llama()
    cold = generate(model, PROMPTS, renderer, max_new_tokens=8, sampling=Sampling(temperature=1e-4))
    assert cold == generate(model, PROMPTS, renderer, max_new_tokens=8)


SOFT = {
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5, prompt_tuning_init="RANDOM"),
    "p-tuning": PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


def soft(kind: str, base=None):
    torch.manual_seed(0)
    model = get_peft_model(tiny.llama() if base is None else base, copy.deepcopy(SOFT[kind])).eval()
    for parameter in model.prompt_encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")  # PEFT's forward of a prefix
@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
@pytest.mark.parametrize("kind", sorted(SOFT))
@pytest.mark.parametrize("batch_size", [1, 6])
def test_soft_prompts_generate_what_their_forward_says(make, kind, batch_size, renderer):
    model = soft(kind, make())
    found = generate(model, PROMPTS, renderer, max_new_tokens=8, batch_size=batch_size)
    for prompt, one in zip(PROMPTS, found, strict=True):
        assert list(one.ids) == naive(model, prompt, renderer.end_token_ids, 8)
    assert found != generate(make(), PROMPTS, renderer, max_new_tokens=8)
    assert not any(module.training for module in model.modules())


def test_soft_prompts_are_sampled_and_streamed(renderer):
    model, pieces = soft("prompt"), []
    drawn = generate(model, PROMPTS, renderer, max_new_tokens=6, batch_size=2, sampling=Sampling(seed=3))
    assert drawn == generate(model, PROMPTS, renderer, max_new_tokens=6, batch_size=6, sampling=Sampling(seed=3))
    made = stream(model, PROMPTS[0], renderer, max_new_tokens=6, on_text=pieces.append)
    assert "".join(pieces) == made.text
    assert made == generate(model, PROMPTS[:1], renderer, max_new_tokens=6)[0]


def test_a_soft_prompt_takes_its_room_from_the_context(renderer):
    model = soft("prompt", tiny.gpt2())
    long = [7 + i % 50 for i in range(248)]  # 5 vectors and 3 new tokens fill 256 positions
    (found,) = generate(model, [long], renderer, max_new_tokens=8)
    assert len(found.ids) == 3 and list(found.ids) == naive(model, long, renderer.end_token_ids, 3)
    with pytest.raises(DataError, match="251"):
        generate(model, [[7] * 251], renderer, max_new_tokens=1)


def test_a_prompt_bank_generates_like_a_model(tmp_path, renderer):
    bank = make_bank(tmp_path)
    found = generate(bank, PROMPTS, renderer, max_new_tokens=6, batch_size=3)
    for prompt, one in zip(PROMPTS, found, strict=True):
        number = int(bank.select(torch.tensor([prompt])).selection)
        wanted = plain_greedy(bank, number, prompt, 6)
        assert list(one.ids) == list(_cut(wanted, renderer.end_token_ids))


def test_soft_prompts_that_would_not_be_exact_are_refused(renderer):
    config = MultitaskPromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, num_tasks=2)
    with pytest.raises(NotSupportedError, match="multitask_prompt_tuning"):
        generate(get_peft_model(tiny.llama(), config), PROMPTS, renderer, max_new_tokens=4)
    window = MistralForCausalLM(MistralConfig(**tiny.llama().config.to_diff_dict() | {"sliding_window": 8}))
    with pytest.raises(NotSupportedError, match="window"):
        generate(soft("prefix", window), PROMPTS, renderer, max_new_tokens=4)


@pytest.mark.parametrize(
    ("prompts", "limit", "sampling", "error"),
    [
        (PROMPTS, 0, None, UsageError),
        ([[]], 4, None, DataError),
        ([[1] * 256], 4, None, DataError),
        (PROMPTS, 4, Sampling(temperature=0.0), UsageError),
        (PROMPTS, 4, Sampling(temperature=float("nan")), UsageError),
        (PROMPTS, 4, Sampling(top_k=0), UsageError),
        (PROMPTS, 4, Sampling(top_p=1.5), UsageError),
        (PROMPTS, 4, Sampling(seed=-1), UsageError),
    ],
)
def test_bad_requests_are_refused(prompts, limit, sampling, error, renderer):
    with pytest.raises(error):
        generate(tiny.llama(), prompts, renderer, max_new_tokens=limit, sampling=sampling)


def test_progress_counts_prompts_and_no_prompts_give_nothing(renderer):
    seen = []
    generate(tiny.llama(), PROMPTS, renderer, max_new_tokens=2, batch_size=4, progress=lambda *call: seen.append(call))
    assert seen == [("generation", 4, 6), ("generation", 6, 6)]
    assert generate(tiny.llama(), [], renderer, max_new_tokens=2) == []


def test_text_is_what_the_renderer_decodes(trained, renderer):
    prompt = renderer.prompt(make_row("Peru", "Lima"))
    (one,) = generate(trained, [prompt], renderer, max_new_tokens=20)
    assert one.text == renderer.decode(one.ids) == "Lima"
