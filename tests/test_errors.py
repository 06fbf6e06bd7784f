"""The tree drawn in the docstring of `seawall.errors` is the tree of its classes."""

import inspect

import pytest

from seawall import errors


def classes() -> dict[str, type[BaseException]]:
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: value for name, value in found if value.__module__ == errors.__name__}


def drawn_tree() -> dict[str, str | None]:
    """Each drawn class with its drawn parent; four characters of drawing are one level."""
    assert errors.__doc__ is not None
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        drawing = line.removeprefix("    ")
        name = drawing.lstrip("│├└─ ").split(" ")[0]
        if not line.startswith("    ") or not name.endswith("Error"):
            continue
        level = (len(drawing) - len(drawing.lstrip("│├└─ "))) // 4
        del path[level:]
        parents[name] = path[-1] if path else None
        path.append(name)
    return parents


def test_every_class_is_drawn_under_its_parent() -> None:
    real = {name: value.__bases__[0].__name__ for name, value in classes().items()}
    real["SeawallError"] = None  # type of the root's own parent is outside the tree
    assert drawn_tree() == real


def test_every_class_is_exported_and_explained() -> None:
    assert sorted(errors.__all__) == errors.__all__
    assert set(errors.__all__) == set(classes())
    for value in classes().values():
        assert value.__doc__


def test_everything_has_one_root() -> None:
    assert all(issubclass(value, errors.SeawallError) for value in classes().values())


def test_a_bad_value_is_also_a_value_error() -> None:
    assert issubclass(errors.LimitError, ValueError)


def test_a_protocol_error_says_whether_the_connection_ends() -> None:
    error = errors.ProtocolError("bad magic", code=4, closes=True, answered=False)
    assert (str(error), error.code, error.closes, error.answered) == ("bad magic", 4, True, False)
    assert errors.ProtocolError("bad payload", code=4, closes=False).answered


@pytest.mark.parametrize(("detail", "text"), [("", "INV-SEQ-ONCE violated"), ("1 > 0", "INV-SEQ-ONCE violated: 1 > 0")])
def test_an_invariant_error_names_its_invariant(detail: str, text: str) -> None:
    error = errors.InvariantError("INV-SEQ-ONCE", detail)
    assert (str(error), error.name) == (text, "INV-SEQ-ONCE")
