"""Crafted model files, whose checksums are right: each is refused in one sentence, in little time and memory.

What would not be refused must do no harm: it can be used and saved like any other network.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import lps
import lps.eval
import lps.export
import lps.infer
import lps.models
import numpy as np
import pytest
import torch
from lps.errors import ConfigError, LPSError
from torch import Tensor

from tests.artifact.crafting import Crafted, Header, Raw, drop, get, places, put, to_json
from tests.command import ENVIRONMENT
from tests.toy import QUICK, toy_task

ROOT = Path(__file__).parents[2]
FILES = {version: ROOT / "tests" / "data" / f"model-v{version}.lps" for version in (1, 2)}

Edit = Callable[[Crafted], object]


def attempt(path: Path) -> tuple[str, lps.Lifelong | None]:
    """The refusal of a file, which has to be a good one, or the network that it gives."""
    begin = process_time()
    try:
        net = lps.load(path)
    except LPSError as error:
        message = str(error)
        assert len(message) < 500, f"{len(message)} characters: {message:.300}"
        assert message.isprintable(), f"not one line of readable characters: {message!r:.300}"
        assert str(path) in message, f"without the file: {message}"
        return message, None
    finally:
        assert process_time() - begin < 5  # of this process alone: the machine may be busy
    return "", net


def refusal(path: Path) -> str:
    message, _ = attempt(path)
    assert message, "was loaded"
    return message


def crafted(path: Path, edit: Edit, version: int = 2) -> Path:
    """A file with this edit."""
    craft = Crafted(FILES[version])
    edit(craft)
    path.write_bytes(craft.content())
    return path


# Every value of the manifest is replaced by each of these in turn.
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "an empty text": "",
    "a text": "x",
    "a text of lines": "a\nb",
    "a text with controls": "a\0b\x1b[31m",
    "half a surrogate pair": Raw('"\\ud800"'),
    "a long text": "x" * 10**5,
    "0": 0,
    "-1": -1,
    "2^62 - 1": 2**62 - 1,
    "2^63": 2**63,
    "10^400": 10**400,
    "1e308": 1e308,
    "1e999": Raw("1e999"),
    "NaN": Raw("NaN"),
    "an empty list": [],
    "a list": [1],
    "a list of texts": ["x", "x"],
    "a long list": list(range(10**4)),
    "an empty object": {},
    "an object": {"x": 1},
    "a deep list": Raw("[" * 10**5 + "]" * 10**5),
}

# The only values that may be others without making the file a wrong one: facts that no weight depends on.
FREE = ("metadata", "written_by", "spent", "init_std", "dropout", "pattern", "sharing")


def is_free(place: tuple[Any, ...]) -> bool:
    return any(key in FREE for key in place) or (place[0] == "tasks" and place[2:] == ("name",))


def check_harmless(net: lps.Lifelong, path: Path) -> None:
    """What was loaded answers as the good file does and can be saved."""
    good = lps.load(FILES[2])
    inputs = torch.linspace(-1, 1, 24).reshape(2, 12)
    for number in (1, 2, 3):
        assert torch.equal(net(inputs, task=number), good(inputs, task=number))
    twin = path.with_name("twin.lps")
    net.save(twin)
    assert lps.load(twin).learnt == net.learnt


def check_unknown(net: lps.Lifelong, path: Path, place: tuple[Any, ...]) -> None:
    """A file of another network, or of none that it names, answers nothing and can be listed and saved."""
    assert "architecture" in place
    assert place[-1] in ("architecture", "name")
    with pytest.raises(LPSError) as error:
        net(torch.zeros(2, 12), task=1)
    assert str(error.value).isprintable()
    assert "backbone" in str(error.value)
    twin = path.with_name("twin.lps")
    net.save(twin)
    assert lps.load(twin).learnt == net.learnt == lps.load(FILES[2]).learnt


@pytest.mark.slow
@pytest.mark.parametrize("value", list(VALUES))
@pytest.mark.parametrize("version", [1, 2])
def test_every_value_of_the_manifest(tmp_path: Path, version: int, value: str) -> None:
    check_everywhere(version, tmp_path, lambda manifest, place: put(manifest, place, VALUES[value]))


@pytest.mark.parametrize("version", [1, 2])
def test_every_missing_value_of_the_manifest(tmp_path: Path, version: int) -> None:
    check_everywhere(version, tmp_path, drop)


def check_everywhere(version: int, directory: Path, edit: Callable[[dict[str, Any], tuple[Any, ...]], None]) -> None:
    """Edit every value of the manifest, but of the entries of a list only the last: the others are like it."""
    craft = Crafted(FILES[version])
    whole, problems = copy.deepcopy(craft.manifest), []
    for place in places(whole):
        lists = ((get(whole, place[:depth]), key) for depth, key in enumerate(place))
        if any(isinstance(values, list) and key != len(values) - 1 for values, key in lists):
            continue
        craft.manifest = copy.deepcopy(whole)
        edit(craft.manifest, place)
        if craft.manifest != whole:
            problems += problem(craft, directory / "model.lps", place)
    assert not problems, "\n".join(problems)


def problem(craft: Crafted, path: Path, place: tuple[Any, ...]) -> list[str]:
    """What is wrong with how this file is read, if anything."""
    path.write_bytes(craft.content())
    try:
        message, net = attempt(path)
        if net is not None and not net.can_run:
            check_unknown(net, path, place)
            return []
        assert message or is_free(place), "was loaded"
        if net is not None:
            check_harmless(net, path)
    except Exception as error:
        text = str(error).partition("\n")[0]
        return [f"{'.'.join(map(str, place))}: {type(error).__name__}: {text:.300}"]
    return []


# Edits of version 2


def setter(*keys: Any, value: Any) -> Edit:
    """Replace one value of the manifest."""
    return lambda c: put(c.manifest, keys, value)


def of_part(name: str, value: Any) -> Edit:
    """Replace one value of the network's description."""
    return lambda c: c.part.update({name: value})


def argument(name: str, value: Any) -> Edit:
    """Make the network with another argument."""
    return lambda c: c.arguments.update({name: value})


def network(name: str, **arguments: Any) -> Edit:
    return of_part("architecture", {"name": name, "arguments": arguments})


def tensor(name: str, change: Callable[[Tensor], Tensor], *, redigest: bool = True) -> Edit:
    """Replace one tensor, in the manifest too."""

    def edit(craft: Crafted) -> None:
        craft.tensors[name] = change(craft.tensors[name].clone())
        if redigest:
            craft.redigest()

    return edit


def first(value: float) -> Callable[[Tensor], Tensor]:
    """Put this value at the first place of a tensor."""

    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


def header(change: Callable[[Header], object]) -> Edit:
    """Edit the safetensors header."""
    return lambda c: setattr(c, "header", change)


def offsets(name: str, begin: int, end: int) -> Edit:
    """Move the ends of one tensor's bytes."""

    def change(entries: Header) -> None:
        entry = entries[name]["data_offsets"]
        entry[0] += begin
        entry[1] += end

    return header(change)


def in_header(name: str, key: str, value: Any) -> Edit:
    return header(lambda entries: entries[name].update({key: value}))


def resized_heads(features: int, *, bias: bool = True) -> Edit:
    """Heads for another number of features, with everything that goes with them."""

    def edit(craft: Crafted) -> None:
        craft.part["features"] = features
        for number, task in enumerate(craft.manifest["tasks"], 1):
            craft.tensors[f"net/{number}/head/weight"] = torch.zeros(task["classes"], features)
            task["head"]["tensors"][0]["shape"] = [task["classes"], features]
            if not bias:
                del craft.tensors[f"net/{number}/head/bias"], task["head"]["tensors"][1]
        craft.redigest()

    return edit


def many_classes(classes: int) -> Edit:
    """A head without features, whose weight of no bytes has as many classes as one likes."""

    def edit(craft: Crafted) -> None:
        resized_heads(0, bias=False)(craft)
        task = craft.manifest["tasks"][0]
        task["classes"] = task["head"]["tensors"][0]["shape"][0] = classes
        craft.tensors["net/1/head/weight"] = torch.zeros(classes, 0)
        craft.redigest()

    return edit


def no_classes(craft: Crafted) -> None:
    """A head of no classes."""
    task = craft.manifest["tasks"][1]
    task["classes"] = 0
    for entry, shape in zip(task["head"]["tensors"], ([0, 7], [0]), strict=True):
        entry["shape"] = shape
        craft.tensors[f"net/2/head/{entry['name']}"] = torch.zeros(shape)
    craft.redigest()


def tasks_copied(count: int) -> Edit:
    """As many tasks, with a head each; all but the first three own and reuse nothing."""

    def edit(craft: Crafted) -> None:
        tasks = craft.manifest["tasks"]
        for number in range(4, count + 1):
            tasks.append(json.loads(json.dumps(tasks[0])))
            for name in ("weight", "bias"):
                craft.tensors[f"net/{number}/head/{name}"] = craft.tensors[f"net/1/head/{name}"]
            for layer in craft.part["layers"]:
                owned = int((craft.owner(layer["name"]) > 0).sum())
                craft.tensors[f"net/{number}/values/{layer['name']}"] = torch.zeros(0)
                craft.tensors[f"net/{number}/mask/{layer['name']}"] = torch.zeros(-(-owned // 8), dtype=torch.uint8)
        for layer in craft.part["layers"]:
            planes = craft.tensors[f"net/all/owner/{layer['name']}"]
            more = torch.zeros(count.bit_length() - len(planes), planes.shape[1], dtype=torch.uint8)
            craft.tensors[f"net/all/owner/{layer['name']}"] = torch.cat([planes, more])
        craft.redigest()

    return edit


def test_127_tasks_are_not_too_many(tmp_path: Path) -> None:
    """So that the same with 128 is refused for no other reason."""
    assert len(lps.load(crafted(tmp_path / "model.lps", tasks_copied(127))).learnt) == 127


def private(*names: str) -> Edit:
    """Say that these common tensors are private, and give every task its copy."""

    def edit(craft: Crafted) -> None:
        craft.part.update(norms="per-task", private=list(names))
        for name in dict.fromkeys(names):
            for number in (1, 2, 3):
                craft.tensors[f"net/{number}/private/{name}"] = craft.tensors[f"net/all/common/{name}"].clone()
            del craft.tensors[f"net/all/common/{name}"]
        craft.redigest()

    return edit


def test_private_tensors_can_be_crafted(tmp_path: Path) -> None:
    """So that what is wrong below is refused for no other reason."""
    assert lps.load(crafted(tmp_path / "model.lps", private("1.bias", "4.bias"))).norms == "per-task"


def private_value(value: float) -> Edit:
    def edit(craft: Crafted) -> None:
        private("1.bias", "4.bias")(craft)
        tensor("net/2/private/4.bias", first(value))(craft)

    return edit


def owners_beyond(craft: Crafted) -> None:
    """Two tasks, but weights of a third."""
    craft.manifest["tasks"].pop()
    craft.tensors = {name: value for name, value in craft.tensors.items() if not name.startswith("net/3/")}
    craft.redigest()


def more_owned(craft: Crafted) -> None:
    """A weight that is free by the values and owned by the owner map."""
    planes = craft.tensors["net/all/owner/1.weight"].clone()
    free = int((craft.owner("1.weight") == 0).nonzero()[0])
    planes[0, free // 8] |= 1 << free % 8
    craft.tensors["net/all/owner/1.weight"] = planes


def renamed(old: str, new: str) -> Edit:
    def edit(craft: Crafted) -> None:
        craft.tensors[new] = craft.tensors.pop(old)

    return edit


def task_name(name: str) -> Edit:
    """A task of this name, and a reason to say it in a refusal."""

    def edit(craft: Crafted) -> None:
        craft.manifest["tasks"][1].update(name=name, digest="0" * 64)

    return edit


def text(change: Callable[[str], str]) -> Edit:
    """Edit the text of the manifest."""

    def edit(craft: Crafted) -> None:
        craft.manifest["tensors"] = {name: craft._stored(name) for name in craft.tensors}
        craft.text = change(to_json(craft.manifest))

    return edit


def huge_layer(*shape: int) -> Edit:
    """A layer without owned weights, of this shape."""

    def edit(craft: Crafted) -> None:
        craft.part["layers"][0]["shape"] = list(shape)

    return edit


LAYER = ("parts", 0, "layers", 0)
FLOATS = {"dtype": "float32", "shape": [12]}  # of an input
OWNER = "net/all/owner/1.weight"
MASK = "net/2/mask/1.weight"

KINDS: dict[str, Edit] = {
    # The network that it names
    "a network with a name of a million": network("x" * 10**6),
    "a network without arguments": network("mlp"),
    "no arguments at all": of_part("architecture", {"name": "mlp"}),
    "another network": network("cifar-net"),
    "a network of another kind of layers": network("resnet50-1d", channels=12),
    "channels of the wrong type": network("resnet50-1d", channels="2"),
    "channels of 0": network("resnet50-1d", channels=0),
    "channels of 2^63": network("resnet50-1d", channels=2**63),
    "an unknown argument": argument("device", "cuda"),
    "an argument named like a parameter of create": argument("name", "x"),
    "an argument with a long name": argument("x" * 10**5, 1),
    "inputs as text": argument("inputs", "12"),
    "inputs as a fraction": argument("inputs", 12.0),
    "inputs true": argument("inputs", True),
    "inputs of 0": argument("inputs", 0),
    "inputs of 2^62": argument("inputs", 2**62),
    "inputs of 2^63": argument("inputs", 2**63),
    "inputs of 10^30": argument("inputs", 10**30),
    "hidden as a number": argument("hidden", 10),
    "hidden as text": argument("hidden", "10"),
    "hidden as an object": argument("hidden", {"10": 7}),
    "hidden nested": argument("hidden", [[10], [7]]),
    "hidden empty": argument("hidden", []),
    "hidden of 0": argument("hidden", [0, 7]),
    "hidden negative": argument("hidden", [-10, 7]),
    "hidden of 10^18": argument("hidden", [10**18, 7]),
    "hidden of 2^63": argument("hidden", [2**63, 7]),
    "hidden of too many bytes": argument("hidden", [2**32, 2**32]),
    "hidden with a layer more": argument("hidden", [10, 7, 7]),
    "hidden of a thousand layers": argument("hidden", [7] * 1000),
    "dropout of 1": argument("dropout", 1),
    "dropout below 0": argument("dropout", -0.1),
    "dropout as text": argument("dropout", "0.1"),
    "dropout of NaN": argument("dropout", Raw("NaN")),
    "dropout of 1e999": argument("dropout", Raw("1e999")),
    # Features and classes
    "features unlike the backbone's": resized_heads(8),
    "features of 0": resized_heads(0),
    "features of 0 without biases": resized_heads(0, bias=False),
    "classes of 0": no_classes,
    "classes of 2^40, none of them with features": many_classes(2**40),
    "classes of 2^40": setter("tasks", 0, "classes", value=2**40),
    "classes of 2^61": setter("tasks", 0, "classes", value=2**61),
    "a million names of classes": setter("tasks", 0, "class_names", value=["x"] * 10**6),
    "names of classes too few": setter("tasks", 0, "class_names", value=["a", "b"]),
    # Layers
    "a layer of 0 x 2^61": huge_layer(0, 2**61),
    "a layer of 2^31 x 2^31": huge_layer(2**31, 2**31),
    "a layer of 2^61 x 2^61": huge_layer(2**61, 2**61),
    "a layer of a thousand dimensions": huge_layer(*[2**61] * 1000),
    "a layer of a million dimensions": huge_layer(*[1] * 10**6),
    "a layer without dimensions": huge_layer(),
    "a layer of another shape of the same size": huge_layer(12, 10),
    "a layer twice": lambda c: c.part["layers"].append(c.part["layers"][0]),
    "two layers of one name": setter("parts", 0, "layers", 1, "name", value="1.weight"),
    "layers in another order": lambda c: c.part["layers"].reverse(),
    "a layer fewer": lambda c: c.part["layers"].pop(),
    "no layers": of_part("layers", []),
    "a layer of an unknown dtype": setter(*LAYER, "dtype", value="float33"),
    "a layer of integers": setter(*LAYER, "dtype", value="int8"),
    "a layer with torch's name of a dtype": setter(*LAYER, "dtype", value="torch.float32"),
    "a layer of a dtype with a long name": setter(*LAYER, "dtype", value="x" * 10**6),
    "spent of 1e999": setter(*LAYER, "spent", value=Raw("1e999")),
    "spent of NaN": setter(*LAYER, "spent", value=Raw("NaN")),
    "init_std of 1e999": setter(*LAYER, "init_std", value=Raw("1e999")),
    "init_std below 0": setter(*LAYER, "init_std", value=-1),
    # Common and private tensors
    "a common tensor twice": lambda c: c.part["common"].append(c.part["common"][0]),
    "a common tensor of 2^61": setter("parts", 0, "common", 0, "shape", value=[2**61]),
    "a common tensor of an unknown dtype": setter("parts", 0, "common", 0, "dtype", value="x"),
    "a common tensor that is a layer": setter("parts", 0, "common", 0, "name", value="1.weight"),
    "private tensors in another order": private("4.bias", "1.bias"),
    "one private tensor of two": private("1.bias"),
    "a private tensor twice": private("1.bias", "4.bias", "1.bias"),
    "a private tensor that is not there": of_part("private", ["2.bias"]),
    "a private tensor that is a layer": of_part("private", ["1.weight"]),
    "a private tensor with a name of a million": of_part("private", ["x" * 10**6]),
    "a million private tensors": of_part("private", ["x"] * 10**6),
    "private tensors of frozen norms": lambda c: (private("1.bias", "4.bias")(c), c.part.update(norms="frozen")),
    # Settings
    "an unknown pattern": of_part("pattern", "diagonal"),
    "an unknown sharing": of_part("sharing", "all"),
    "an unknown kind of norms": of_part("norms", "none"),
    "patterns of layers that match none": of_part("exclude", ["9.*"]),
    "patterns of layers that match all": of_part("exclude", ["*"]),
    "a pattern of layers that takes long": of_part("exclude", ["*a" * 2000 + "b"]),
    "a pattern of layers of 10^5": of_part("exclude", ["x" * 10**5]),
    "a million patterns of layers": of_part("exclude", ["x*y"] * 10**6),
    # Parts, method and versions
    "two parts": lambda c: c.manifest["parts"].append(c.manifest["parts"][0]),
    "no part": setter("parts", value=[]),
    "another name of the part": of_part("name", "other"),
    "a part with a name of a million": of_part("name", "x" * 10**6),
    "another method": setter("method", value="single"),
    "version 0": setter("version", value=0),
    "version 1 in the form of 2": setter("version", value=1),
    "version 4": setter("version", value=4),
    "version 10^400": setter("version", value=10**400),
    "version as text": setter("version", value="2"),
    "version true": setter("version", value=True),
    "version 2.0": setter("version", value=2.0),
    "version 1e999": setter("version", value=Raw("1e999")),
    "version as a list": setter("version", value=[2] * 10**5),
    "another format": setter("format", value="learn-prune-share state"),
    "a key too many": setter("pickle", value="x"),
    "a key too many with a long name": setter("x" * 10**5, value=1),
    "a key too many of lines": setter("a\nb", value=1),
    # Tasks
    "no tasks": setter("tasks", value=[]),
    "128 tasks": tasks_copied(128),
    "a task of another part": setter("tasks", 1, "part", value="x\ny"),
    "a wrong digest": setter("tasks", 1, "digest", value="0" * 64),
    "a digest of a million": setter("tasks", 1, "digest", value="0" * 10**6),
    "a digest of lines": setter("tasks", 1, "digest", value="0\n0"),
    "a wrong digest of a task with a name of lines": task_name("a\nb\r\u2028c"),
    "a wrong digest of a task with NUL in its name": task_name("a\0b"),
    "a wrong digest of a task with a name of a million": task_name("x" * 10**6),
    "a task named by half a surrogate pair": setter("tasks", 1, "name", value=Raw('"\\udfff"')),
    "a head of an unknown kind": setter("tasks", 1, "head", "kind", value="mlp"),
    "a head that only its maker can make": setter("tasks", 1, "head", "kind", value="custom"),
    "a head without tensors": setter("tasks", 1, "head", "tensors", value=[]),
    "a tensor of a head twice": lambda c: c.manifest["tasks"][1]["head"]["tensors"].append(
        c.manifest["tasks"][1]["head"]["tensors"][0]
    ),
    # Tensors
    "a tensor too many": lambda c: c.tensors.update({"x": torch.zeros(3)}),
    "a tensor too many with a long name": lambda c: c.tensors.update({"x" * 10**5: torch.zeros(3)}),
    "a tensor too many of no bytes": lambda c: c.tensors.update({"net/4/values/1.weight": torch.zeros(0)}),
    "a tensor too many with a name of lines": lambda c: c.tensors.update({"net/1/a\nb": torch.zeros(3)}),
    "a tensor too few": lambda c: c.tensors.pop(MASK),
    "a tensor of another name": renamed(MASK, "net/02/mask/1.weight"),
    "a tensor of an exotic dtype": tensor("net/1/head/bias", lambda t: t.to(torch.float8_e5m2), redigest=False),
    "a tensor of complex numbers": tensor("net/1/head/bias", lambda t: t.to(torch.complex64), redigest=False),
    "a mask of no task": lambda c: c.tensors.update({"net/1/mask/1.weight": torch.zeros(0, dtype=torch.uint8)}),
    "a stored tensor of another code": lambda c: c.stored.update({MASK: {"code": "zip" * 10**5}}),
    "a stored tensor of another sha256": lambda c: c.stored.update({MASK: {"sha256": "0" * 64}}),
    "a stored tensor of another dtype": lambda c: c.stored.update({MASK: {"dtype": "int8"}}),
    "a stored tensor of another shape": lambda c: c.stored.update({MASK: {"shape": [2**61, 2**61]}}),
    "stored tensors missing": setter("tensors", value={}),
    "stored tensors by number": setter("tensors", value=[]),
    "a stored checksum": lambda c: c.tensors.update(checksum=torch.zeros(3)),
    # Owners and masks
    "owners beyond the tasks": owners_beyond,
    "an owner without a value": more_owned,
    "an owner map without a row": tensor(OWNER, lambda t: t[:1], redigest=False),
    "an owner map with a row too many": tensor(OWNER, lambda t: torch.cat([t, t[:1] * 0]), redigest=False),
    "an owner map of a byte too many": tensor(OWNER, lambda t: torch.cat([t, t[:, :1] * 0], 1), redigest=False),
    "an owner map in one dimension": tensor(OWNER, lambda t: t.flatten(), redigest=False),
    "an owner map of another dtype": tensor(OWNER, lambda t: t.to(torch.int64), redigest=False),
    "an owner in the unused bits": tensor("net/all/owner/4.weight", lambda t: t | 128, redigest=False),
    "a mask with unused bits": tensor("net/3/mask/4.weight", lambda t: t | 128, redigest=False),
    "a mask of a byte too few": tensor(MASK, lambda t: t[:-1], redigest=False),
    "a mask of a byte too many": tensor(MASK, lambda t: torch.cat([t, t[:1] * 0]), redigest=False),
    "a mask of flags": tensor(MASK, lambda t: t.to(torch.bool), redigest=False),
    "values of float64": tensor("net/1/values/1.weight", Tensor.double, redigest=False),
    "values too few": tensor("net/1/values/1.weight", lambda t: t[:-1], redigest=False),
    "a head transposed": tensor("net/1/head/weight", lambda t: t.t().contiguous(), redigest=False),
    # Metadata
    "an input shape of 0": setter("metadata", "input_shape", value=[0]),
    "an input shape of 2^31": setter("metadata", "input_shape", value=[2**31]),
    "an input shape as a fraction": setter("metadata", "input_shape", value=[12.5]),
    "an input shape of a million dimensions": setter("metadata", "input_shape", value=[1] * 10**6),
    "inputs that are no list": setter("metadata", "inputs", value={"dtype": "float32", "shape": [12]}),
    "inputs of no tensor": setter("metadata", "inputs", value=[[]]),
    "inputs of a thousand tensors": setter("metadata", "inputs", value=[[FLOATS] * 1000]),
    "inputs of a thousand tasks": setter("metadata", "inputs", value=[None] * 1000),
    "an input of an unknown type": setter("metadata", "inputs", value=[[{**FLOATS, "dtype": "object"}]]),
    "an input of size 0": setter("metadata", "inputs", value=[[{**FLOATS, "shape": [0]}]]),
    "a dynamic axis that is none": setter("metadata", "inputs", value=[[{**FLOATS, "dynamic": [1]}]]),
    "two inputs of one name": setter("metadata", "inputs", value=[[{**FLOATS, "name": "a"}] * 2]),
    "an input with a name beside one without": setter("metadata", "inputs", value=[[FLOATS, {**FLOATS, "name": "a"}]]),
    "whole numbers beyond 64 bits": setter("metadata", "inputs", value=[[{**FLOATS, "high": 2**63}]]),
    "an accuracy above 1": setter("metadata", "accuracy", value=[0.5, 0.5, 1.5]),
    "an accuracy of NaN": setter("metadata", "accuracy", value=[0.5, 0.5, Raw("NaN")]),
    "an accuracy of 1e999": setter("metadata", "accuracy", value=[0.5, 0.5, Raw("1e999")]),
    "an accuracy as text": setter("metadata", "accuracy", value=["0.5"]),
    "a stream without a seed": setter("metadata", "stream", value={"benchmark": "mixed", "tasks": 3}),
    "a stream with a negative seed": setter("metadata", "stream", "seed", value=-1),
    "a stream with a seed as a fraction": setter("metadata", "stream", "seed", value=0.5),
    "a stream of no tasks": setter("metadata", "stream", "tasks", value=0),
    "options of a stream as a list": setter("metadata", "stream", "options", value=[256]),
    "options of a stream nested": setter("metadata", "stream", "options", value={"window": {"x": 1}}),
    "options of a stream of 1e999": setter("metadata", "stream", "options", value={"window": Raw("1e999")}),
    "a task of origin below 1": setter("metadata", "from_task", value={"task": 0}),
    "the user's number of 1e999": setter("metadata", "user", value={"x": Raw("1e999")}),
    "the user's NaN": setter("metadata", "user", value={"x": Raw("NaN")}),
    "the user's half surrogate pair": setter("metadata", "user", value={"x": Raw('"\\ud800"')}),
    "the user's deep list": setter("metadata", "user", value={"x": Raw("[" * 10**5 + "]" * 10**5)}),
    "metadata of a null": setter("metadata", value=None),
    # The text of the manifest
    "a manifest that goes on": text(lambda t: t + "{}"),
    "a manifest that ends early": text(lambda t: t[:-1]),
    "a manifest with a comment": text(lambda t: "/* x */" + t),
    "a manifest with a byte order mark": text(lambda t: "\ufeff" + t),
    "a manifest in a list": text(lambda t: f"[{t}]"),
    "an empty manifest": text(lambda _: ""),
    "a manifest of null": text(lambda _: "null"),
    "a manifest of a long number": text(lambda _: "1" * 10**5),
    "a manifest of many brackets": text(lambda _: "[" * 10**6),
    "a manifest of many objects": text(lambda _: '{"a":' * 10**6),
    # The safetensors header
    "a second manifest in the header": header(
        lambda h: h.update({"__metadata__": Raw(to_json(h["__metadata__"])[:-1] + ', "manifest": "{}"}')})
    ),
    "a manifest that is no text": header(lambda h: h["__metadata__"].update(manifest=1)),
    "a second metadata key": header(lambda h: h["__metadata__"].update(more="x")),
    "no metadata": header(lambda h: h.pop("__metadata__")),
    "metadata that is a list": header(lambda h: h.update({"__metadata__": []})),
    "bytes of two tensors that overlap": offsets(MASK, -1, -1),
    "bytes of a tensor given to another": header(
        lambda h: h["net/2/head/bias"].update(data_offsets=h["net/1/head/weight"]["data_offsets"])
    ),
    "bytes of a tensor with a hole before it": offsets(MASK, 1, 1),
    "bytes of a tensor that end before they begin": offsets(MASK, 3, 0),
    "bytes of a tensor one too many": offsets(MASK, 0, 1),
    "bytes of a tensor beyond the file": offsets(MASK, 0, 10**6),
    "bytes of a tensor beyond 2^63": offsets(MASK, 2**63, 2**63),
    "bytes of a tensor below 0": offsets(MASK, -(10**6), 0),
    "bytes after the tensors": lambda c: setattr(c, "data", b"x" * 8),
    "a dtype of the header unknown": in_header(MASK, "dtype", "U7"),
    "a dtype of the header for half bytes": in_header(MASK, "dtype", "F4"),
    "a shape of the header that overflows": in_header(MASK, "shape", [2**32, 2**32]),
    "a shape of the header that overflows to 0": in_header(MASK, "shape", [2**63, 2, 2**63, 0]),
    "a shape of the header below 0": in_header(MASK, "shape", [-3]),
    "a shape of the header as a fraction": in_header(MASK, "shape", [3.0]),
    "a key of the header unknown": in_header(MASK, "stride", [1]),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_is_refused(tmp_path: Path, kind: str) -> None:
    refusal(crafted(tmp_path / "model.lps", KINDS[kind]))


@pytest.mark.parametrize("name", ["transformer", "os.system", "os:system", "../../mlp", "mlp\nmlp"])
def test_networks_that_are_not_known_are_never_made(tmp_path: Path, name: str) -> None:
    """Such a file is a list of tasks and tensors; nothing is imported for its network, which cannot be run."""
    net = lps.load(crafted(tmp_path / "model.lps", network(name, command="true")))
    with pytest.raises(ConfigError) as error:
        net(torch.zeros(1, 12), task=1)
    assert "is not registered here" in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize(
    "name",
    ["net/1/values/1.weight", "net/3/values/4.weight", "net/all/common/4.bias", "net/2/head/weight", "net/2/head/bias"],
)
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, name: str, value: float) -> None:
    assert name in refusal(crafted(tmp_path / "model.lps", tensor(name, first(value))))


@pytest.mark.parametrize("name", ["values/1.weight", "common/4.bias", "head/2/weight"])
def test_weights_of_version_1_that_are_not_finite_are_refused(tmp_path: Path, name: str) -> None:
    kind, _, rest = name.partition("/")
    message = refusal(crafted(tmp_path / "model.lps", tensor(name, first(float("nan"))), version=1))
    assert kind in message
    assert rest.rpartition("/")[2] in message


def test_private_tensors_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    assert "net/2/private/4.bias" in refusal(crafted(tmp_path / "model.lps", private_value(float("nan"))))


class Child:
    """A process that attempts in forks of itself what may take all memory."""

    def __init__(self) -> None:
        code = f"from tests.artifact.crafting import serve; serve({str(FILES[2])!r})"
        environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}  # forks of a process with threads may hang
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def attempt(self, module: str, *arguments: str | Path) -> dict[str, Any]:
        """Run a command of the package; without a module, load the file. Says what it cost and how it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"module": module, "arguments": [str(part) for part in arguments]}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


def test_the_measurement_sees_what_is_taken(child: Child, tmp_path: Path) -> None:
    """A file of hardly any bytes whose network is a large one: 10^7 weights, all free, in a layer of their own."""
    assert child.attempt("", FILES[2])["megabytes"] < 10
    net = lps.Lifelong(lps.models.mlp(1000, (10**4, 7), 0.0), 7)
    net.learn(toy_task(0, (1000,)), replace(QUICK, alpha=0.001, epochs=(0, 1, 0)))
    net.save(tmp_path / "model.lps")
    answer = child.attempt("", tmp_path / "model.lps")
    assert answer["error"] == "0"
    assert answer["megabytes"] > 80  # weights of float32 in the backbone, and as committed


def check_cost(answer: dict[str, Any], path: Path) -> None:
    """Twice the file, and 100 MB for what Python and torch need besides."""
    limit = 2 * path.stat().st_size / 2**20 + 100
    assert answer["megabytes"] < limit, f"{answer['megabytes']:.0f} MB of {limit:.0f}: {answer['message']:.300}"
    assert answer["seconds"] < 5, f"{answer['seconds']:.1f} s"


def free_layer(weights: int) -> Edit:
    """A layer of many free weights, an eighth of a byte each per bit of its owner, that the backbone does not have."""

    def edit(craft: Crafted) -> None:
        craft.part["layers"][0]["shape"] = [weights // 10, 10]
        craft.tensors[OWNER] = torch.zeros(2, -(-weights // 8), dtype=torch.uint8)
        for number in (1, 2, 3):
            craft.tensors[f"net/{number}/values/1.weight"] = torch.zeros(0)
            if number > 1:
                craft.tensors[f"net/{number}/mask/1.weight"] = torch.zeros(0, dtype=torch.uint8)

    return edit


def empty_tensors(count: int) -> Edit:
    """Tensors that take no bytes beside their entries."""
    return header(
        lambda h: h.update(
            {f"{index}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for index in range(count)}
        )
    )


# What costs memory or time out of proportion to the file. Some are as large as the limit of the child process allows,
# so that memory is really taken; the largest show what happens where there is not enough of it.
BOMBS: dict[str, Edit] = {
    "hidden of 10^4 x 10^4": argument("hidden", [10**4, 10**4]),
    "hidden of 10^6 x 10^6": argument("hidden", [10**6, 10**6]),
    "inputs of 10^7": argument("inputs", 10**7),
    "inputs of 10^9": argument("inputs", 10**9),
    "hidden of a hundred thousand layers": argument("hidden", [1] * 10**5),
    "channels of 4 * 10^5": network("resnet50-1d", channels=4 * 10**5),
    "channels of 10^9": network("resnet50-1d", channels=10**9),
    "a network of 60 MB that the file does not hold": network("resnet50-1d"),
    "a layer of 10^8 free weights": free_layer(10**8),
    "six million empty lists": lambda c: c.manifest["metadata"].update(
        user={"x": Raw("[[]" + ",[]" * 6 * 10**6 + "]")}
    ),
    "two million numbers": lambda c: c.manifest["metadata"].update(user={"x": Raw("[1.5" + ",1.5" * 2 * 10**6 + "]")}),
    "a million names of layers": lambda c: c.part.update(exclude=Raw('["x"' + ',"x"' * 10**6 + "]")),
    "200,000 tensors": empty_tensors(2 * 10**5),
    "a layer of a million dimensions": huge_layer(*[1] * 10**6),
}
HARMLESS = ("six million empty lists", "two million numbers")  # the user's own metadata


@pytest.mark.parametrize("kind", list(BOMBS))
def test_memory_and_time_are_in_proportion_to_the_file(child: Child, tmp_path: Path, kind: str) -> None:
    path = crafted(tmp_path / "model.lps", BOMBS[kind])
    answer = child.attempt("", path)
    check_cost(answer, path)
    path.unlink()
    if kind not in HARMLESS or answer["error"] != "0":
        assert answer["error"] == "FileFormatError"
        assert len(answer["message"]) < 500


# Of a known network with inputs of another shape: more than there is, and less, but out of proportion.
SHAPES = {"more memory than there is": [2**30, 2**30], "a gigabyte": [2**14, 2**14], "300 dimensions": [2] * 300}
COMMANDS: dict[str, tuple[str, ...]] = {
    "infer": ("lps.infer", "--task", "1", "--benchmark"),
    "export to torch": ("lps.export", "--task", "1", "--format", "torch", "--output", "out"),
    "export to lps": ("lps.export", "--task", "1", "--format", "lps", "--output", "out"),
}


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.parametrize("shape", list(SHAPES))
def test_an_input_shape_that_the_network_cannot_read(child: Child, tmp_path: Path, shape: str, command: str) -> None:
    path = crafted(tmp_path / "model.lps", setter("metadata", "input_shape", value=SHAPES[shape]))
    module, *arguments = COMMANDS[command]
    arguments = [str(tmp_path / "out") if argument == "out" else argument for argument in arguments]
    answer = child.attempt(module, path, *arguments)
    check_cost(answer, path)
    if answer["error"] == "0":
        assert command == "export to lps"  # which needs no inputs
        assert lps.load(tmp_path / "out").metadata.input_shape == SHAPES[shape]
    else:
        assert answer["error"] in ("1", "2")
        assert_sentence(answer["message"], module)
        assert not (tmp_path / "out").exists()


def assert_sentence(message: str, module: str) -> None:
    """One line of readable characters."""
    assert message.startswith(f"{module}: ")
    assert message.endswith("\n")
    assert message[:-1].isprintable()
    assert len(message) < 500


def stream(benchmark: str, **values: Any) -> Edit:
    """Say that the tasks come from this stream."""
    source = {"benchmark": benchmark, "seed": 0, "tasks": 3, "options": {}, **values}
    return setter("metadata", "stream", value=source)


DIGITS = "permuted-digits"

STREAMS: dict[str, Edit] = {
    "an unknown benchmark": stream("imagenet"),
    "a benchmark with an empty name": stream(""),
    "a benchmark with a name of lines": stream("a\nb\x1b[31m"),
    "a benchmark with a name of 10^5": stream("x" * 10**5),
    "a benchmark whose inputs are others": stream(DIGITS),
    "a seed of 2^200": stream(DIGITS, seed=2**200),
    "a seed of 2^63 - 1": stream(DIGITS, seed=2**63 - 1),
    "a stream of 2^62 tasks": stream(DIGITS, tasks=2**62),
    "unknown options": stream(DIGITS, options={"window": 256}),
    "options with a name of lines": stream(DIGITS, options={"a\nb": 1}),
    "options with a long name": stream(DIGITS, options={"x" * 10**5: 1}),
    "a window of 0": stream("synthetic-rf", options={"window": 0}),
    "a window of 2^62": stream("synthetic-rf", options={"window": 2**62}),
    "a window as text": stream("synthetic-rf", options={"window": "x" * 10**5}),
    "a window of null": stream("synthetic-rf", options={"window": None}),
    "no accuracies": lambda c: (stream(DIGITS)(c), c.manifest["metadata"].pop("accuracy")),
    "an accuracy fewer": lambda c: (stream(DIGITS)(c), c.manifest["metadata"]["accuracy"].pop()),
}


@pytest.mark.parametrize("kind", list(STREAMS))
def test_eval_of_a_file_whose_stream_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = crafted(tmp_path / "model.lps", STREAMS[kind])
    code = lps.eval.main([str(path), "--data-dir", str(tmp_path)])
    shown = capsys.readouterr()
    assert code in (1, 2)
    assert shown.out == ""
    assert_sentence(shown.err, "lps.eval")


@pytest.mark.parametrize("kind", list(STREAMS))
def test_infer_of_a_file_whose_stream_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Arrays can be classified whatever the stream is; how images become inputs can then not be known."""
    monkeypatch.chdir(tmp_path)
    path = crafted(tmp_path / "model.lps", STREAMS[kind])
    np.save("inputs.npy", np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 12))
    code = lps.infer.main([str(path), "--task", "1", "--format", "json", "inputs.npy"])
    shown = capsys.readouterr()
    if code == 0:
        assert [answer["index"] for answer in json.loads(shown.out, parse_constant=not_json)] == [0, 1]
    else:
        assert code in (1, 2)
        assert_sentence(shown.err, "lps.infer")


def not_json(text: str) -> None:
    """Python's own reader takes NaN and Infinity for numbers; no other does."""
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "\x1b[31mred", "a\0b"], ids=repr)
def test_names_of_tasks_do_not_break_what_eval_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Names are the user's, so that a file may hold any."""

    def edit(craft: Crafted) -> None:
        craft.manifest["tasks"][1]["name"] = name
        craft.manifest["metadata"].pop("stream")

    code = lps.eval.main([str(crafted(tmp_path / "model.lps", edit))])
    shown = capsys.readouterr()
    if code == 0:
        assert len(shown.out.splitlines()) == 7  # a heading and a line, three tasks, and after an empty line a sentence
        assert shown.out.replace("\n", "").isprintable()
    else:
        assert_sentence(shown.err, "lps.eval")
