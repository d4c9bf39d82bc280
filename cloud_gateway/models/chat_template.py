"""Chat templates whose own text is marked in their result.

    template = ChatTemplate(source, control=["<|im_start|>", "<|im_end|>"])
    marked = template.render(messages=own_roles(messages), ...)
    plain(marked)            the template's result without marks
    template.written(marked) the control tokens that the template itself wrote, with their places

Marking the client's strings instead would change what a template finds where it looks into them (`'</think>' in
content`, `|trim`, `content[0]`). So the template's own text is marked: in its syntax tree, every constant that is
written to the result and that is a control token, or could be a part of one, is moved to a plane of code points to
which Unicode assigns nothing. Constants that are only compared or searched for are not changed. Where this module does
not follow an expression and a mark is lost, a control token becomes plain text, never the reverse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from jinja2 import Template, nodes
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from edgespec.core.errors import ClientError, ModelError

MARK = 0xD0000
"""Distance of a marked character from the plain one. Unicode has no letters in planes 4 to 13 and plans none."""
STAND_IN = 0xC0000
"""From here on, one code point for each control token."""
_RESERVED = re.compile("[\U00040000-\U000dffff]")
_MARKED = re.compile("[\U000d0000-\U000dffff]+")
ROLES = frozenset({"system", "user", "assistant", "tool"})
"""The only values of a request that may be part of a control token: templates write `'<|' + role + '|>'`."""
_WRITES_ITS_INPUT = frozenset({"default", "d", "indent", "join", "replace", "safe", "string", "trim"})
"""Filters whose result contains the characters of their input."""
_SHOWN = "__shown"
_OWN = "__own"
Span = tuple[int, int, str]
"""Start and end of a control token in a rendered chat, and the token."""


class Own(str):
    """A string of the template or the gateway: compared without marks, written with them."""

    __slots__ = ()


def refuse_reserved(value: Any) -> None:
    """Raises ClientError 400 if a string of the client, at any depth, has a character that is used for marks."""
    if isinstance(value, str):
        if value.isascii():
            return

        reserved = _RESERVED.search(value)
        if reserved:
            name = f"U+{ord(reserved[0]):X}"
            raise ClientError(
                f"The request has the character {name}, to which Unicode assigns no meaning; remove it.",
                param="messages",
                code="invalid_value",
            )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            refuse_reserved(key)
            refuse_reserved(item)
    elif isinstance(value, list | tuple):
        for item in value:
            refuse_reserved(item)


def own_roles(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages for the template: without fields that are None, and with known roles as `Own`."""
    rendered: list[dict[str, Any]] = []
    for message in messages:
        fields = {key: value for key, value in message.items() if value is not None}
        if fields.get("role") in ROLES:
            fields["role"] = Own(fields["role"])
        rendered.append(fields)

    return rendered


def plain(marked: str) -> str:
    """The same text without marks; every character keeps its place."""
    return _MARKED.sub(lambda run: "".join(chr(ord(char) - MARK) for char in run[0]), marked)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the first of these texts; without any it finds nothing."""
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


class ChatTemplate:
    """One model's chat template. Raises jinja2.TemplateError if it cannot be read."""

    def __init__(self, source: str, control: Iterable[str]) -> None:
        tokens = sorted(filter(None, control), key=len, reverse=True)
        self._parts = _Parts(tokens)
        self._tokens = {self._parts.mark_all(token): token for token in tokens}
        self._search = any_of(self._tokens)

        environment = _environment(source)
        tree = environment.parse(source)
        self.constants = frozenset(_constants(tree))
        """Strings that the template may search a chat for: its own strings and the names of fields."""

        tree = _Marking(self._parts, environment).visit(tree)
        code = environment.compile(tree)
        self._template = Template.from_code(environment, code, environment.make_globals(None))

    def render(self, special: Mapping[str, Any], **variables: Any) -> str:
        """The result with marks. `special` has the names of the model's special tokens (`bos_token`, ...)."""
        tokens = dict(special)
        for name, token in special.items():
            if isinstance(token, str):
                tokens[name] = Own(token)

        helpers = {_SHOWN: partial(_shown, self._parts), _OWN: Own}
        return self._template.render(**tokens, **variables, **helpers)

    def written(self, marked: str) -> list[Span]:
        """The control tokens that the template wrote, with their places."""
        return [(*match.span(), self._tokens[match[0]]) for match in self._search.finditer(marked)]


class _Parts:
    """Marks control tokens, and possible parts of one, in a constant of a template."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._whole = any_of(tokens)

    def mark_all(self, text: str) -> str:
        """Marks every character but white space, which templates trim, and characters beyond the first plane."""
        return "".join(map(_mark_char, text))

    def mark(self, text: str) -> str:
        """Marks control tokens in the text, and ends of the text that may be the rest or the beginning of one."""
        if any(text in token for token in self._tokens):
            return self.mark_all(text)

        # Marked or not, every character keeps its place, and one that is marked already is not changed again.
        head = max((_overlap(token, text) for token in self._tokens), default=0)
        tail = max((_overlap(text, token) for token in self._tokens), default=0)
        rest = max(len(text) - tail, head)
        middle = self._whole.sub(lambda token: self.mark_all(token[0]), text)
        return self.mark_all(middle[:head]) + middle[head:rest] + self.mark_all(middle[rest:])


def _mark_char(char: str) -> str:
    if char.isspace() or ord(char) > 0xFFFF:
        return char
    return chr(ord(char) + MARK)


def _overlap(left: str, right: str) -> int:
    """Length of the longest end of `left` that begins `right`."""
    for length in range(min(len(left), len(right)), 0, -1):
        if left.endswith(right[:length]):
            return length

    return 0


def _shown(parts: _Parts, value: Any) -> Any:
    """The value as it is written to the result; of a list that is joined, each item."""
    if isinstance(value, Own):
        return parts.mark_all(value)
    if isinstance(value, list | tuple) and any(isinstance(item, Own) for item in value):
        return [_shown(parts, item) for item in value]
    return value


class _Marking(NodeTransformer):
    """Rewrites a template's syntax tree.

    `_text` is for expressions that become text, `_value` for those that may be written later or compared: there a
    constant becomes an `Own`, which is marked where it is written.
    """

    def __init__(self, parts: _Parts, environment: SandboxedEnvironment) -> None:
        self._parts = parts
        self._environment = environment

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        node.nodes = list(map(self._text, node.nodes))
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:  # noqa: N802
        node.node = self._value(node.node)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        node.iter = self._value(node.iter)
        return self.generic_visit(node)

    def visit_With(self, node: nodes.With) -> nodes.Node:  # noqa: N802
        node.values = list(map(self._value, node.values))
        return self.generic_visit(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        node.defaults = list(map(self._value, node.defaults))
        return self.generic_visit(node)

    def _text(self, node: Any) -> Any:
        match node:
            case nodes.TemplateData():
                node.data = self._parts.mark(node.data)
            case nodes.Const(value=str()):
                node.value = self._parts.mark(node.value)
            case nodes.Add():
                node.left = self._text(node.left)
                node.right = self._text(node.right)
            case nodes.Concat():
                node.nodes = list(map(self._text, node.nodes))
            case nodes.CondExpr():
                node.expr1 = self._text(node.expr1)
                node.expr2 = node.expr2 and self._text(node.expr2)
            case nodes.Or() | nodes.And():
                node.left = self._text(node.left)
                node.right = self._text(node.right)
            case nodes.Filter(name="replace") if node.node is not None:
                node.node = self._text(node.node)
                node.args[1:] = map(self._text, node.args[1:])  # the first is only searched for
            case nodes.Filter(name=name) if name in _WRITES_ITS_INPUT and node.node is not None:
                node.node = self._text(node.node)
                node.args = list(map(self._text, node.args))
            case nodes.Const():
                pass
            case _:
                return self._helper(_SHOWN, self._value(node))
        return node

    def _value(self, node: Any) -> Any:
        match node:
            case nodes.Const(value=str()) if self._parts.mark(node.value) != node.value:
                return self._helper(_OWN, node)
            case nodes.Add() | nodes.Concat():
                return self._text(node)
            case nodes.Filter(name=name) if name in _WRITES_ITS_INPUT:
                return self._text(node)
            case nodes.CondExpr():
                node.expr1 = self._value(node.expr1)
                node.expr2 = node.expr2 and self._value(node.expr2)
            case nodes.Or() | nodes.And():
                node.left = self._value(node.left)
                node.right = self._value(node.right)
            case nodes.List() | nodes.Tuple():
                node.items = list(map(self._value, node.items))
            case nodes.Dict():
                for pair in node.items:
                    pair.value = self._value(pair.value)
            case nodes.Getitem():
                node.node = self._value(node.node)
            case nodes.Call():
                self._call(node)
        return node

    def _call(self, node: nodes.Call) -> None:
        """Arguments of macros may be written; of a string's methods only what `join` joins and `replace` inserts; of a
        dictionary's what `get` returns."""
        match node.node:
            case nodes.Name():
                node.args = list(map(self._value, node.args))
                for keyword in node.kwargs:
                    keyword.value = self._value(keyword.value)
            case nodes.Getattr(attr="join" | "replace") as method:
                method.node = self._text(method.node)
                node.args[-1:] = map(self._text, node.args[-1:])
            case nodes.Getattr(attr="get") as method:
                method.node = self._value(method.node)
                node.args[1:] = map(self._value, node.args[1:])

    def _helper(self, name: str, argument: nodes.Expr) -> nodes.Expr:
        """A call of a function that `ChatTemplate.render` gives the template."""
        place: dict[str, Any] = {
            "lineno": argument.lineno,
            "environment": self._environment,
        }
        function = nodes.Name(name, "load", **place)
        return nodes.Call(function, [argument], [], None, None, **place)


def _constants(tree: nodes.Node) -> Iterable[str]:
    for attribute in tree.find_all(nodes.Getattr):
        yield attribute.attr

    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str) and constant.value:
            yield constant.value


def _environment(source: str) -> SandboxedEnvironment:
    """The sandbox in which transformers renders this template, with its filters and functions."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment: SandboxedEnvironment = _compile_jinja_template(source).environment
    return environment


_HTML = (
    "table caption thead tbody tfoot tr th td h[1-6] blockquote strong em b code sub sup i u s ul ol li pre p div br hr"
)
_ORDINARY = re.compile(rf"[\s\u2581]+|[\w\s]+|</?(?:{_HTML.replace(' ', '|')})>")
"""Added tokens that are only text: runs of white space, words, HTML tags. Gemma and Phi have them."""


class ControlTokens:
    """The control tokens of a fast tokenizer, and one that makes them from stand-ins only.

    Each is renamed to one code point that no client may send. Text between two is cut and merged as by the model's
    tokenizer, which too sets such tokens apart first; one that is spelled out is cut like any other text. Raises
    ModelError if they cannot be distinguished from text.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        """`template`: source of the chat template; added tokens in it, such as `<think>`, are control tokens."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError("The model's tokenizer is not one of the tokenizers library; chats need such a one.")

        state: dict[str, Any] = json.loads(backend.to_str())
        self.ids: dict[str, int] = {}
        for token in state["added_tokens"]:
            text = str(token["content"])
            if text and (token["special"] or _steers(text, template)):
                self.ids[text] = int(token["id"])

        unknown = _unknown(state["model"])
        self._names = {text: chr(STAND_IN + number) for number, text in enumerate(self.ids)}
        self._tokenizer = _renamed(state, self._names)
        for text, name in self._names.items():
            if self._tokenizer.token_to_id(name) != self.ids[text]:
                raise ModelError(
                    "The special tokens of the model's tokenizer contradict its vocabulary; use another one."
                )

        self._steering = frozenset(self.ids.values())
        ends = (tokenizer.bos_token, tokenizer.eos_token)
        if unknown in self.ids and unknown not in ends and unknown not in template:
            # A tokenizer without bytes encodes unknown letters as this token, so ordinary text may contain it.
            self._steering -= {self.ids[unknown]}

    def encode(self, text: str, written: Sequence[Span]) -> list[int]:
        """The tokens of a chat whose control tokens are at these places and nowhere else."""
        pieces: list[str] = []
        copied = 0
        for start, end, token in written:
            pieces.append(text[copied:start])
            pieces.append(self._names[token])
            copied = end
        pieces.append(text[copied:])

        # A batch of one, since `encode` holds the GIL to its end: no stream would go on beside a long chat.
        renamed = "".join(pieces)
        (encoded,) = self._tokenizer.encode_batch([renamed], add_special_tokens=False)
        tokens: list[int] = encoded.ids
        return tokens

    def among(self, tokens: Sequence[int]) -> list[int]:
        """Those of the tokens that are control tokens, in their order."""
        return [token for token in tokens if token in self._steering]

    def of(self, written: Sequence[Span]) -> list[int]:
        """The ids of the control tokens at these places."""
        return self.among([self.ids[token] for _, _, token in written])


def _steers(text: str, template: str) -> bool:
    """Whether an added token not marked as special is a control token: DeepSeek's `<｜User｜>`, Qwen's `<think>`."""
    if text.isspace():
        return False

    return text in template or not _ORDINARY.fullmatch(text)


def _renamed(state: dict[str, Any], names: Mapping[str, str]) -> Any:
    """The tokenizer with these tokens renamed, so that only the new names are encoded as them."""
    from tokenizers import Tokenizer

    def name_of(text: str) -> str:
        return names.get(text, text)

    model = state["model"]
    match model.get("vocab"):
        case dict(vocabulary):
            model["vocab"] = {name_of(text): id_ for text, id_ in vocabulary.items()}
        case list(vocabulary):
            model["vocab"] = [[name_of(text), score] for text, score in vocabulary]

    if model.get("merges"):
        model["merges"] = _merges_without(names, model["merges"])
    if model.get("unk_token") is not None:
        model["unk_token"] = name_of(model["unk_token"])
    for token in state["added_tokens"]:
        token["content"] = name_of(token["content"])

    unused = dict.fromkeys(["post_processor", "truncation", "padding"])
    return Tokenizer.from_str(json.dumps({**state, **unused}))


def _merges_without(
    names: Mapping[str, str],
    merges: Sequence[str | list[str]],
) -> list[list[str]]:
    """The merges that neither take nor make a token of these names."""
    kept: list[list[str]] = []
    for merge in merges:
        pair = merge
        if isinstance(pair, str):
            pair = pair.split(" ", 1)
        if not {*pair, "".join(pair)} & names.keys():
            kept.append(pair)

    return kept


def _unknown(model: Mapping[str, Any]) -> str:
    """The token for text that the vocabulary lacks, or an empty string."""
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, list):
        return model.get("unk_token") or ""

    index = model.get("unk_id")
    if isinstance(index, int):
        return str(vocabulary[index][0])
    return ""
