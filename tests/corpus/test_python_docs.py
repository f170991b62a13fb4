"""`python_docs`, on a package written for the purpose and on what is installed."""

import json
import subprocess
import sys
import textwrap

import pytest

from gr_jax import InputError
from gr_jax.corpus import Document, python_docs
from gr_jax.corpus.python_docs import Entry, split

LONG = "Word" + " word" * 25
PACKAGE = {
    "__init__.py": f'''
        """A zoo of animals. {LONG}"""
        raise RuntimeError("this package must not be imported")
        from mypackage._impl import Lion, feed as feed
        from mypackage._impl import _secret
        from mypackage import _impl as impl
        from mypackage._stars import *
        nickname = impl.sleep
        ''',
    "_impl.py": f'''
        """Private. {LONG}"""
        class Lion(Animal):
            """A big cat. {LONG}"""
            def roar(self, volume: int = 3) -> str:
                """Makes a noise. It is loud. {LONG}
                The end."""
            def _private(self):
                """Hidden away. {LONG}"""
        def feed(lion, *, meat):
            """Gives meat to a lion. {LONG}"""
        def sleep():
            """Lets it rest. {LONG}"""
        def _secret():
            """Nobody knows. {LONG}"""
        def helper():
            """Public only below impl. {LONG}"""
        ''',
    "_stars.py": f'''
        __all__ = ["star"]
        def star():
            """Shines by a star import. {LONG}"""
        def dust():
            """Not exported at all. {LONG}"""
        ''',
    "public.py": f'''
        from mypackage._impl import feed
        from os.path import join as join
        __all__ = ["open_gate"] + []
        def open_gate():
            """Opens the gate. {LONG}"""
        def short():
            """Too short. To keep."""
        async def copied():
            """Opens the gate. {LONG}"""
        if True:
            class Gate:
                """A gate of iron. {LONG}"""
        else:
            def other(): pass
        ''',
    "strict.py": f'''
        __all__ = ["listed"]
        def listed():
            """Stands in the list. {LONG}"""
        def unlisted():
            """Does not stand in the list. {LONG}"""
        ''',
    "broken.py": "def (:",
    "test_public.py": f'def test_gate():\n    """Tests the gate. {LONG}"""',
    "tests/data.py": f'def data():\n    """Test data. {LONG}"""',
    "sub/deep.py": f'def dive():\n    """Goes down. {LONG}"""',
    "native.py": f'''
        add_newdoc("mypackage.native", "ufunc", """
            ufunc(x, /, out=None)

            Adds by C. {LONG}""")
        add_newdoc("mypackage.native", "ufunc", ("at", """Adds in place. {LONG}"""))
        ''',
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, source in PACKAGE.items():
        path = tmp_path / "site" / "mypackage" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).lstrip())
    monkeypatch.syspath_prepend(tmp_path / "site")
    return "mypackage"


def test_public_names_are_documents_under_the_name_that_is_imported(package):
    dataset = python_docs([package])
    assert list(dataset.corpus.doc_ids) == [
        "mypackage",
        "mypackage.Lion",
        "mypackage.Lion.roar",
        "mypackage.feed",
        "mypackage.impl",
        "mypackage.impl.helper",
        "mypackage.native.ufunc",
        "mypackage.native.ufunc.at",
        "mypackage.nickname",
        "mypackage.public.Gate",
        "mypackage.public.copied",
        "mypackage.star",
        "mypackage.strict.listed",
        "mypackage.sub.deep.dive",
    ]
    assert package not in sys.modules
    assert dataset.notes["too_short"] == 1 and dataset.notes["repeated"] == 1
    assert dataset.transform == "split_identifiers" and dataset.name == "python_docs"


def test_documents_hold_the_signature_and_what_the_queries_leave(package):
    corpus = python_docs([package]).corpus
    texts = {document.doc_id: document.text for document in corpus}
    assert texts["mypackage.feed"] == f"feed(lion, *, meat)\n{LONG}"
    assert texts["mypackage.Lion.roar"] == f"roar(self, volume: int=3) -> str\n{LONG}\nThe end."
    assert texts["mypackage.Lion"].startswith("class Lion(Animal)\nWord")
    assert texts["mypackage.native.ufunc"].startswith("ufunc(x, /, out=None)\nWord")
    assert all(document.title == document.doc_id for document in corpus)


def test_splits_do_not_depend_on_order_or_company():
    entries = [Entry(Document(f"d{i}", "", "x"), (f"First of {i}.", f"Second of {i}.")) for i in range(400)]
    entries += [Entry(Document(f"s{i}", "", "x"), ("Shared by all.",)) for i in range(30)]
    queries, qrels = split(entries)
    again_queries, again = split(reversed(entries))
    assert {name: dict(q) for name, q in qrels.items()} == {name: dict(q) for name, q in again.items()}
    assert set(queries.texts) == set(again_queries.texts)
    _, alone = split(entries[:100])
    for name, judgements in alone.items():
        assert all(qrels[name][query_id] == grades for query_id, grades in judgements.items())


def test_splits_keep_unseen_documents_unseen():
    entries = [Entry(Document(f"d{i}", "", "x"), (f"First of {i}.", f"Second of {i}.")) for i in range(2000)]
    # Every tenth pair of documents shares a query, once as the first and once as the second.
    entries += [Entry(Document(f"a{i}", "", "x"), (f"Shared by {i}.", f"Other of {i}.")) for i in range(500)]
    entries += [Entry(Document(f"b{i}", "", "x"), (f"First of b{i}.", f"Shared by {i}.")) for i in range(500)]
    queries, qrels = split(entries)
    where = [query_id for judgements in qrels.values() for query_id in judgements]
    assert sorted(where) == sorted(queries.ids) and len(set(queries.texts)) == len(queries)
    seen = {doc_id for grades in qrels["train"].values() for doc_id in grades}
    assert all(doc_id in seen for grades in qrels["test"].values() for doc_id in grades)
    assert not any(doc_id in seen for grades in qrels["test_unseen"].values() for doc_id in grades)
    assert {len(grades) for judgements in qrels.values() for grades in judgements.values()} == {1, 2}
    sizes = {name: len(judgements) for name, judgements in qrels.items()}
    assert sizes["train"] > sizes["test"] > sizes["test_unseen"] > 0 and sizes["dev"] > 0


@pytest.mark.parametrize("packages", [["no_such_package_at_all"], [], ["os.path"], ["_imp"], [""]])
def test_what_is_not_installed_is_refused(packages):
    with pytest.raises(InputError):
        python_docs(packages)


@pytest.fixture(scope="module")
def installed():
    return python_docs()


@pytest.mark.slow  # reads all packages
def test_the_default_is_a_few_thousand_documents(installed):
    assert 3500 < len(installed.corpus) < 6500
    assert {package: bool(version) for package, version in installed.notes["packages"].items()} == dict.fromkeys(
        ["jax", "flax", "optax", "orbax", "numpy", "stdlib"], True
    )
    assert 500 < len(installed.qrels["test"]) < 1200 and 300 < len(installed.qrels["test_unseen"]) < 700
    assert len({document.text for document in installed.corpus}) > 0.99 * len(installed.corpus)
    assert all(len(document.text.split()) >= 20 for document in installed.corpus)


@pytest.mark.slow  # reads all packages
def test_users_find_names_as_they_import_them(installed):
    names = set(installed.corpus.doc_ids)
    wanted = ["jax.jit", "jax.vmap", "jax.numpy.einsum", "jax.lax.scan", "flax.linen.Dense", "optax.adam", "numpy.sort"]
    wanted += ["orbax.checkpoint.CheckpointManager.save", "asyncio.gather", "collections.Counter", "numpy.linalg.svd"]
    assert [name for name in wanted if name not in names] == []
    assert not any(part.startswith("_") for name in names for part in name.split("."))
    assert not any(part in ("test", "tests") for name in names for part in name.split("."))


@pytest.mark.slow  # reads all packages
def test_the_first_sentence_of_a_known_docstring_is_a_query(installed):
    sentence = "Sets up ``fun`` for just-in-time compilation with XLA."
    (query_id,) = [
        i for i, text in zip(installed.queries.ids, installed.queries.texts, strict=True) if text == sentence
    ]
    (split_name,) = [name for name, qrels in installed.qrels.items() if query_id in qrels]
    assert "jax.jit" in installed.qrels[split_name][query_id]
    assert installed.queries.text(query_id) not in installed.corpus[installed.corpus.index_of("jax.jit")].text


def test_another_process_reads_the_same():
    code = "import json; from gr_jax.corpus import python_docs; print(json.dumps(python_docs(['optax']).fingerprint))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    read = python_docs(["optax"])
    assert json.loads(output) == read.fingerprint
    assert {"optax.adam", "optax.sigmoid_binary_cross_entropy", "optax.MultiSteps"} <= {*read.corpus.doc_ids}
    assert not any(part.startswith("_") or "test" in part for one in read.corpus.doc_ids for part in one.split("."))
