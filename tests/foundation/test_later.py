"""Names of modules that are imported when they are used."""

import importlib
import sys
import typing

import pytest
import transformer_lens.utilities.hf_utils as hub
import transformer_lens.utilities.tokenize_utils as tokens

from compolens.foundation.later import Later, alone, put_off

PART = '"""A part."""\nclass Word(str): shout = "!"\nclass Number(int): pass\ndef double(x, times=2): return times * x\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package with a module, which nobody has imported."""
    (tmp_path / "seldom_used").mkdir()
    (tmp_path / "seldom_used" / "__init__.py").write_text("from seldom_used.part import double\nVERSION = 3\n")
    (tmp_path / "seldom_used" / "part.py").write_text(PART)
    monkeypatch.syspath_prepend(tmp_path)
    yield "seldom_used"
    for name in [name for name in sys.modules if name.startswith("seldom_used")]:
        del sys.modules[name]


def names_of(package):
    return {package: ["double"], f"{package}.part": ["Word", "Number"]}


def loaded(package):
    return [name for name in sys.modules if name.startswith(package)]


def test_a_name_is_imported_when_it_is_used_and_then_is_what_it_stands_for(package):
    with put_off(names_of(package)):
        from seldom_used import double
        from seldom_used.part import Number, Word
    assert loaded(package) == [] and all(isinstance(name, Later) for name in (double, Word, Number))
    assert double(3) == 6 and double(3, times=5) == 15
    part = importlib.import_module(f"{package}.part")
    assert Word.shout == "!" and type(Word("a")) is part.Word
    assert isinstance(part.Word("a"), Word) and not isinstance("a", Word)
    assert issubclass(part.Word, Word) and not issubclass(str, Word)
    assert Word | Number == part.Word | part.Number and Word | None == part.Word | None and int | Word == int | part.Word

    class Louder(Word):
        pass

    assert Louder.__mro__[1] is part.Word


def test_a_module_that_somebody_kept_has_everything_afterwards(package):
    with put_off(names_of(package)):
        kept = importlib.import_module(package)
    assert kept.VERSION == 3 and importlib.import_module(package) is not kept
    with pytest.raises(AttributeError):
        assert kept.nothing


def test_what_is_imported_already_stays_as_it_is(package):
    before = importlib.import_module(package)
    with put_off(names_of(package), absent=[package]):
        assert importlib.import_module(package) is before and importlib.import_module(f"{package}.part").Word("a") == "a"
    assert importlib.import_module(package) is before


def test_another_name_is_an_import_error_inside_and_there_afterwards(package):
    for statement in ("from seldom_used import VERSION", "import seldom_used.other", "from seldom_used.part import PART"):
        with pytest.raises(ImportError), put_off(names_of(package)):
            exec(statement)
        assert loaded(package) == []
    assert importlib.import_module(package).VERSION == 3


def test_an_absent_package_is_not_found_inside_and_there_afterwards(package):
    with put_off({}, absent=[package]), pytest.raises(ModuleNotFoundError):
        importlib.import_module(package)
    assert importlib.import_module(package).VERSION == 3


def test_transformer_lens_finds_what_was_put_off():
    """Whether it was depends on who imported what first in this process; what it finds does not."""
    import datasets
    import transformers

    assert typing.get_type_hints(tokens.tokenize_and_concatenate)["dataset"] == datasets.Dataset | datasets.IterableDataset
    assert tokens.AutoTokenizer.from_pretrained == transformers.AutoTokenizer.from_pretrained
    assert hub.load_dataset.__code__ is datasets.load_dataset.__code__


# ---- a module alone --------------------------------------------------------------------------------------------------
def test_a_module_alone_is_imported_without_its_package(package, tmp_path):
    (tmp_path / package / "tools").mkdir()
    (tmp_path / package / "tools" / "__init__.py").write_text("raise AssertionError('all of it is imported')\n")
    (tmp_path / package / "tools" / "one.py").write_text(f"from {package}.tools.two import TWO\nONE = TWO - 1\n")
    (tmp_path / package / "tools" / "two.py").write_text("TWO = 2\n")
    assert alone(f"{package}.tools", "one").ONE == 1
    assert not loaded(f"{package}.tools")


def test_a_module_that_needs_its_package_or_is_imported_already_is_that_of_the_package(package, tmp_path):
    (tmp_path / package / "tools").mkdir()
    (tmp_path / package / "tools" / "__init__.py").write_text("THREE = 3\n")
    (tmp_path / package / "tools" / "one.py").write_text(f"from {package}.tools import THREE\n")
    found = alone(f"{package}.tools", "one")
    assert found.THREE == 3 and sys.modules[f"{package}.tools.one"] is found is alone(f"{package}.tools", "one")
    with pytest.raises(ImportError):
        alone(f"{package}.tools", "nothing")
    del sys.modules[f"{package}.tools"]
    with pytest.raises(ImportError):
        alone(f"{package}.tools", "nothing")
