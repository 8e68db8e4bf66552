"""The base of all sections of the job file: strict models, and descriptions of the form of a field's value."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import AllowInfNan, BaseModel, BeforeValidator, ConfigDict, Strict, StrictBool, StrictInt, StrictStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A mapping of the job file with known keys. It is frozen, and refuses unknown keys and other types.

    ``refused_keys``: keys that are known but not allowed here, with the reason. ``words``: what may be written in place of the
    mapping, the default first. The attributes have the names of the file's
    keys.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, arbitrary_types_allowed=True
    )
    refused_keys: ClassVar[Mapping[str, str]] = {}
    words: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """Metadata of a field: the form of its value in the file, as it follows the words "must be"."""

    form: str


def refuse(text: str, *, key: str = "", choices: Sequence[str] = ()) -> PydanticCustomError:
    """Returns the error that a validator raises. ``text`` follows the key's path. It must not quote the value, which may be
    secret.

    ``key``: a key below the validated value. ``choices``: the words to suggest for a typo.
    """
    return PydanticCustomError("refused", "{text}", {"text": text, "key": key, "choices": tuple(choices)})


def not_supported_yet(what: str) -> str:
    return f"{what} is not supported yet"


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise refuse("must be a number of seconds above 0")
    return value


Text = StrictStr
Flag = StrictBool
Count = Annotated[StrictInt, annotated_types.Ge(1)]
Seconds = Annotated[
    float,
    Strict(),
    AllowInfNan(False),
    BeforeValidator(_no_flag),
    annotated_types.Gt(0),
    Written("a number of seconds above 0"),
]
SecondsOrZero = Annotated[
    float,
    Strict(),
    AllowInfNan(False),
    BeforeValidator(_no_flag),
    annotated_types.Ge(0),
    Written("a number of seconds, 0 or more"),
]
ColumnNames = Annotated[
    tuple[Text, ...], annotated_types.MinLen(1), Written("a list of column names, like [id, email]")
]


def form_of(field: FieldInfo) -> str:
    """Returns the form of the field's values, as it follows "must be"."""
    return _form(field.annotation, tuple(field.metadata))


def form_of_annotation(annotation: Any) -> str:
    """Returns the form of the values of a mapping or list."""
    return _form(annotation, ())


def section_in(annotation: Any) -> type[Section] | None:
    """Returns the section that ``annotation`` names, optional or not; None if it names none or several."""
    bare = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, Section) else None


def sections_in_union(annotation: Any) -> tuple[type[Section], ...]:
    """Returns the sections of a discriminated union, () for anything else."""
    members = get_args(_bare(annotation)) if get_origin(_bare(annotation)) in (Union, types.UnionType) else ()
    sections = tuple(section for section in map(section_in, members) if section is not None)
    return sections if len(sections) == len(members) else ()


def value_annotation(annotation: Any) -> Any:
    """Returns the annotation of a mapping's values or a list's items; None for anything else."""
    bare = _bare(annotation)
    arguments = get_args(bare)
    if isinstance(get_origin(bare), type) and issubclass(get_origin(bare), Mapping):
        return arguments[1]
    return arguments[0] if get_origin(bare) is tuple else None


def _bare(annotation: Any) -> Any:
    """Removes Annotated and None."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return _bare(members[0])
    return annotation


def _form(annotation: Any, metadata: tuple[Any, ...]) -> str:
    if get_origin(annotation) is Annotated:
        return _form(get_args(annotation)[0], (*get_args(annotation)[1:], *metadata))
    for note in reversed(metadata):
        if isinstance(note, Written):
            return note.form
    bare = annotation
    if get_origin(bare) in (Union, types.UnionType):
        members = [member for member in get_args(bare) if member is not type(None)]
        return " or ".join(_form(member, metadata) for member in members)
    if get_origin(bare) is Literal:
        return " | ".join(str(choice) for choice in get_args(bare))
    if bare is bool:
        return "true or false"
    if bare is int:
        least = next((note.ge for note in metadata if isinstance(note, annotated_types.Ge)), None)
        return "a whole number" if least is None else f"a whole number, at least {least}"
    if bare is str:
        return "text"
    if section_in(bare) is not None:
        return "a section of keys"
    raise TypeError(f"say by Written(...) what {annotation!r} looks like")
