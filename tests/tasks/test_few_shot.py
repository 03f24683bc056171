"""Prompts of words: held out are pairs, counterfactuals are exact, answers are what text and tokenizer say."""

import itertools
import shutil

import pytest
import torch

from compolens.foundation.configs import ConfigError
from compolens.tasks.few_shot import FORMATS, WORDS, FewShot

TASK = FewShot(n_examples=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of letters, as transformers keeps them: answers have several tokens, prompts are of different lengths."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ :->;\n"
    made = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    path = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    return str(path)


def spelled(task, tokens):
    ids = tokens.argmax(-1)[tokens.any(-1)].tolist()
    return " ".join(task._pieces[i] for i in ids)


@pytest.mark.parametrize("split", ["train", "ood"])
def test_a_prompt_says_what_its_codes_say(split):
    drawn = TASK.sample(20, split, TASK.rng(0, split))
    for row in range(20):
        operation, place, form = (int(drawn.codes[name][row]) for name in TASK.code_kinds)
        text, pairs = "", drawn.inputs[row].tolist()
        x, tail = FORMATS[form].split("{y}")
        for i, pair in enumerate(pairs):
            words, meant = [TASK.words[w] for w in pair], TASK.words[pair[place]]
            made = {"copy": meant, "upper": meant.upper(), "reverse": meant[::-1], "last letter": meant[-1]}
            text += x.replace("{x}", " ".join(words)) + (made[TASK.operations[operation]] + tail if i < 2 else "")
        assert TASK.prompt(drawn.codes, drawn.inputs, row).split() == text.split()
        assert spelled(TASK, drawn.tokens[row]).split() == text.split()
        assert TASK._pieces[int(drawn.targets[row, -1])] == made[TASK.operations[operation]]
    assert not drawn.tokens[:, 0].any() or drawn.tokens.any(-1).all(), "padding comes first"


def test_what_touches_a_word_is_a_token_of_its_own():
    task = FewShot(formats=("{x}: {y}.\n", "({x}) = {y}\n"), n_examples=1)
    drawn = task.sample(20, "train", task.rng(0, "train"))
    assert set(drawn.codes["format"].tolist()) == {0, 1}
    for row in range(20):
        prompt = task.prompt(drawn.codes, drawn.inputs, row)
        for mark in ":.()":
            prompt = prompt.replace(mark, f" {mark} ")
        assert spelled(task, drawn.tokens[row]).split() == prompt.split()


def test_an_example_asked_again_is_answered_as_it_was_shown():
    shown = TASK.sample(12, "ood", TASK.rng(1, "ood"))
    tokens, targets = TASK.context_asked(shown)
    assert tokens.shape == (12, 2, *shown.tokens.shape[1:]) and targets.shape == (12, 2, TASK.seq)
    for row in range(12):
        head, example = TASK.prompt(shown.codes, shown.inputs, row), []
        for i in range(2):
            text = spelled(TASK, tokens[row, i])
            inputs = shown.inputs.clone()
            inputs[:, -1] = inputs[:, i]
            assert text.split() == TASK.prompt(shown.codes, inputs, row).split()
            example.append(text.split()[-3:])
            answer, question = TASK._pieces[int(targets[row, i, -1])], " ".join(text.split()[-3:])
            assert f"{question} {answer} " in " ".join(head.split()).replace(" ; ", " ") + " "
        assert example[0] != example[1]


def test_every_part_is_trained_and_only_pairs_are_held_out():
    for seed in range(5):
        task = FewShot(n_examples=1, split_seed=seed)
        train, ood = ([task._universe[c] for c in task.compositions(split)] for split in ("train", "ood"))
        assert sorted(train + ood) == list(itertools.product(range(4), range(2), range(2)))
        assert [len({c[k] for c in train}) for k in range(3)] == [4, 2, 2]
        seen = {(k, c[0], c[k]) for c in train for k in (1, 2)}
        assert all(any((k, c[0], c[k]) not in seen for k in (1, 2)) for c in ood), "each has a pair that training never shows"


def test_the_same_words_under_another_code_are_another_prompt():
    drawn = TASK.sample(16, "train", TASK.rng(0, "train"))
    again = TASK.render(drawn.codes, drawn.inputs)
    assert all(torch.equal(getattr(again, part), getattr(drawn, part)) for part in ("tokens", "targets", "composition"))
    codes, mask = TASK.exchange(drawn.codes, {n: c.roll(1, 0) for n, c in drawn.codes.items()}, TASK.rng(1, "train"))
    other = TASK.render(codes, drawn.inputs)
    assert torch.equal(other.inputs, drawn.inputs) and mask.any()
    assert torch.equal(mask.any(1), other.composition != drawn.composition)


def test_answers_are_tokens_of_a_local_tokenizer(folder):
    task = FewShot(n_examples=2, tokenizer=folder)
    drawn = task.sample(12, "train", task.rng(0, "train"))
    for row in range(12):
        ids = task._encode(task.prompt(drawn.codes, drawn.inputs, row))
        shown = drawn.tokens[row].argmax(-1)[drawn.tokens[row].any(-1)].tolist()
        assert shown == ids, "a prompt is the tokens of its text"
        operation, place = int(drawn.codes["operation"][row]), int(drawn.codes["place"][row])
        answer = task.answer(operation, int(drawn.inputs[row, -1, place]))
        assert int(drawn.targets[row, -1]) == task._encode(" " + answer)[0]


def test_a_relative_tokenizer_is_found_from_anywhere_beside_the_model(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "tokens")
    elsewhere, model = tmp_path / "elsewhere", tmp_path / "runs" / "model"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    task = FewShot(n_examples=2, tokenizer="tokens")
    with pytest.raises(ConfigError, match=r"there is no such folder; the path counts from .*elsewhere"):
        _ = task.d_in
    task.look_above(model)
    assert task.d_in == FewShot(n_examples=2, tokenizer=folder).d_in


@pytest.mark.parametrize("spelling", ["words", "letters"])
def test_a_loss_may_count_the_examples_answers(spelling, folder):
    task = FewShot(n_examples=2, counted="all", tokenizer=folder if spelling == "letters" else "")
    drawn = task.sample(12, "train", task.rng(0, "train"))
    plain = FewShot(n_examples=2, tokenizer=task.tokenizer).sample(12, "train", task.rng(0, "train"))
    assert torch.equal(drawn.tokens, plain.tokens) and torch.equal(drawn.targets[:, -1], plain.targets[:, -1])
    for row in range(12):
        at = (drawn.targets[row] != -100).nonzero().flatten().tolist()
        operation, place = int(drawn.codes["operation"][row]), int(drawn.codes["place"][row])
        answers = [task._encode(" " + task.answer(operation, int(words[place])))[0] for words in drawn.inputs[row]]
        assert drawn.targets[row, at].tolist() == answers, "the first token of each answer"
        assert drawn.tokens[row, [t + 1 for t in at[:-1]]].argmax(-1).tolist() == answers[:-1], "where it comes next"
    right = torch.zeros(12, task.seq, task.d_out).scatter(2, drawn.targets.clamp(min=0)[..., None], 50.0)
    assert task.loss(right, drawn.targets) < 1e-6
    right[:, at[0]] = 0
    assert task.loss(right, drawn.targets) > 0.1
    assert task.loss(right[:, -1:].expand_as(right), drawn.targets) < 1e-6, "of the question alone, where it alone is known"


def test_a_word_list_of_ones_own_is_an_operation():
    opposites = tuple(f"not{word}" for word in TASK.words)
    task = FewShot(operations=("copy", "opposite"), maps=(("opposite", opposites),), n_examples=1)
    drawn = task.sample(40, "train", task.rng(0, "train"))
    told = {task._pieces[int(t)].startswith("not") for t in drawn.targets[drawn.codes["operation"] == 1][:, -1]}
    assert told == {True}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operations": ("copyy",)}, "no operation 'copyy'; did you mean 'copy'"),
        ({"formats": ("{y} {x}",)}, "a format has"),
        ({"words": ("a", "b")}, "take 10 words, got 2"),
        ({"maps": (("m", ("a",)),)}, "'m' has 1 answers for 24 words"),
        ({"fraction_held_out": 0.0}, "fraction_held_out must lie between 0 and 1, got 0.0"),
        ({"fraction_held_out": 1.0}, "fraction_held_out must lie between 0 and 1, got 1.0"),
        ({"words": ("", *WORDS)}, "words must not be empty, got ''; leave it out"),
        ({"operations": ("copy", "first letter"), "words": (" a", *WORDS)}, "'first letter' makes nothing of ' a'"),
        ({"places": ("third",)}, "no place 'third'"),
        ({"counted": "every"}, "counted is 'every'; allowed: all, question"),
        ({"tokenizer": "/nowhere"}, "no tokenizer in '/nowhere'"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        _ = FewShot(**settings).seq
