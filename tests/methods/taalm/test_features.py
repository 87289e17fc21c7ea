"""What the base thinks of tokens, against a plain loop; and what tokens look like."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig
from torch.testing import assert_close

from budwood.data.documents.document import Document
from budwood.data.documents.windows import make_windows
from budwood.data.offsets import OffsetTokens
from budwood.data.problems import Origin
from budwood.errors import ConfigError
from budwood.methods.taalm.features import FEATURES, surface
from budwood.methods.taalm.passages import from_window
from budwood.methods.taalm.reading import read
from tests import tiny
from tests.methods.taalm import cases

TEXTS = ["The 12 bells of Telvik.", "Ida", "A bell, the Bell!"]


def features_of(text):
    (passage,) = cases.passages([text])
    (reading,) = read(tiny.llama(), [passage], ())
    values = surface(passage, reading)
    assert values.shape == (len(passage.spans), len(FEATURES))
    return passage, reading, dict(zip(FEATURES, values.T))


def marked(text, name):
    """The characters at whose token a feature is not 0."""
    passage, _, values = features_of(text)
    return "".join(passage.text[slice(*passage.spans[t])] for t in values[name].nonzero()[:, 0].tolist())


def test_reading_equals_a_loop_whatever_the_batch():
    model, passages = tiny.llama(), cases.passages(TEXTS)
    for passage, found in zip(passages, read(model, passages, (1, 0, 2))):
        ids = torch.tensor(passage.encoded.input_ids)
        output = model(input_ids=ids[None], output_hidden_states=True)
        for t in range(1, len(ids)):
            p = output.logits[0, t - 1].double().softmax(-1)
            assert_close(found.nll[t].double(), -p[ids[t]].log(), rtol=1e-4, atol=1e-4)
            assert_close(found.entropy[t].double(), -(p * p.log()).sum(), rtol=1e-4, atol=1e-4)
            assert found.rank[t] == (p > p[ids[t]]).sum()
        assert found.nll[0] == found.entropy[0] == found.rank[0] == 0
        states = [output.hidden_states[layer][0] for layer in (1, 0, 2)]
        assert_close(found.hidden, torch.cat(states, dim=-1), rtol=1e-4, atol=1e-4)


def test_an_adapter_is_switched_off_while_the_base_is_read():
    passages = cases.passages(TEXTS)
    model = cases.stirred(cases.llama(LoraConfig(target_modules=["q_proj", "v_proj"])))
    adapted = model(input_ids=torch.tensor([passages[0].encoded.input_ids])).logits
    for found, expected in zip(read(model.train(), passages, (2,)), read(tiny.llama(), passages, (2,))):
        assert_close(found.nll, expected.nll)
        assert_close(found.hidden, expected.hidden)
    again = model.eval()(input_ids=torch.tensor([passages[0].encoded.input_ids])).logits
    assert_close(again, adapted)


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_is_not_there_is_an_error(layer):
    with pytest.raises(ConfigError, match=f"enters layer {layer}"):
        read(tiny.llama(), cases.passages(["x"]), (layer,))


def test_what_tokens_look_like():
    assert marked(TEXTS[0], "capitalised") == "TheTelvik"
    assert marked(TEXTS[0], "stopword") == "Theof"
    assert marked(TEXTS[0], "digit") == "12"
    assert marked(TEXTS[0], "punctuation") == "."
    assert marked(TEXTS[2], "word_repeated") == "bellBell" and marked(TEXTS[2], "word_seen") == "Bell"
    assert marked("It rang. The bell fell.", "sentence_start") == "ItThe"


def test_what_the_base_thinks_is_among_the_features():
    _, reading, values = features_of(TEXTS[0])
    assert_close(values["nll"], reading.nll / 5)
    assert_close(values["p"][1:], (-reading.nll[1:]).exp())
    assert values["p"][0] == 0
    assert all(torch.isfinite(one).all() and one.abs().max() < 5 for one in values.values())


def test_windows_of_documents_become_passages():
    document = Document("Bells\n\nTelvik has two bells. One is old.", Origin("a.txt", 1), title="On bells")
    windows = make_windows([document], OffsetTokens(tiny.tokenizer()), max_tokens=44)
    assert any(window.context for window in windows)
    for window in windows:
        passage = from_window(window)
        learned = [passage.text[slice(*span)] for span in passage.spans]  # of the context: nothing
        assert "".join(learned) == passage.text == window.text
        assert all(window.encoded.labels[t] >= 0 for t in passage.scored) and 0 not in passage.scored
        assert len(passage.scored) == window.encoded.supervised
