"""Run folders and results that were damaged: python -m helpers.damaged_files <folder> <seed> <cases>.

Every case damages one file of a small run, or a result of `topomask reproduce`, and runs a verb on it. The verb must
come to its end or say in one line what is wrong: no other error, and no hang. Prints how many did what.
"""

import contextlib
import io
import json
import random
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from helpers.small_runs import SMALL, write_picture
from topomask.cli import main as topomask
from topomask.train.checkpoint import digest

SECONDS = 60
# The row and fields of a study that take a second.
STUDY = ["digits", "--only", "linear", "--seeds", "0", "--train.steps=2", *SMALL["digits"]]
FIELDS = ["--train.steps=4", "--train.checkpoint_every=2", "--train.log_every=1", *SMALL["digits"]]


def nested(depth: int) -> str:
    """JSON so deep that Python's own reader gives up, or nearly."""
    return "[" * depth + "]" * depth


# What stands in for a value: JSON as text, since not all of it can be made from objects.
ODD = [
    *("null", "true", "false", "0", "-1", "3", "0.5", "-0.5", "1e308", "1e999", "NaN", "-Infinity", "1" + "0" * 30),
    *("1" + "0" * 400, '""', '"x"', '"nan"', '"../../x"', '"\\u0000"', '"\\ud800"', '"a\\nb"', "[]", "{}", "[[]]"),
    *('["x", 1]', '{"x": 1}', '{"": null}', nested(30), nested(200), nested(900), nested(100_000)),
]


def damage_json(text: str, draw: random.Random) -> str:
    """JSON with a key gone, a key too many, or another value somewhere."""
    found = json.loads(text)
    places = list(_places(found))
    if not places or draw.random() < 0.1:
        return draw.choice(ODD)
    home, key = draw.choice(places)
    kind = draw.choice(["drop", "add", "replace", "replace", "replace"])
    if kind == "drop":
        del home[key]
    elif kind == "add" and isinstance(home, dict):
        home[draw.choice(["x", "", "step", "../x", "a\nb"])] = home[key]
    else:
        home[key] = "<here>"
    return json.dumps(found).replace('"<here>"', draw.choice(ODD))


def _places(found: Any) -> Any:
    for key in found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield found, key
        yield from _places(found[key])


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bytes that are cut, flipped, gone or too many."""
    place, other = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    kind = draw.choice(["cut", "flip", "gone", "more", "empty", "noise"])
    if kind == "flip" and place < len(content):
        return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
    return {
        "cut": content[:place],
        "flip": content[:place],
        "gone": content[:place] + content[other:],
        "more": content[:place] + draw.randbytes(9) + content[place:],
        "empty": b"",
        "noise": draw.randbytes(100),
    }[kind]


def damage_line(content: bytes, draw: random.Random) -> bytes:
    """Lines of JSON of which one is damaged, gone or misplaced."""
    lines = content.decode().splitlines()
    place = draw.randrange(len(lines))
    kind = draw.choice(["json", "json", "json", "gone", "shuffled", "twice"])
    if kind == "json":
        lines[place] = damage_json(lines[place], draw)
    elif kind == "gone":
        del lines[place]
    elif kind == "twice":
        lines.insert(draw.randrange(len(lines)), lines[place])
    else:
        draw.shuffle(lines)
    return "".join(f"{line}\n" for line in lines).encode()


def write_header(path: Path, text: str, tensors: dict[str, torch.Tensor] | None = None) -> None:
    """Give a checkpoint another header, with the checksum that belongs to it."""
    tensors = load_file(path) if tensors is None else tensors
    save_file(tensors, path, {"topomask": text, "digest": digest(tensors, text)})


def read_header(path: Path) -> str:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header["__metadata__"]["topomask"]


def damage_tensors(path: Path, draw: random.Random) -> None:
    """A checkpoint in which a tensor is gone, or has another name, shape, dtype or content."""
    tensors = load_file(path)
    name = draw.choice(sorted(tensors))
    tensor = tensors.pop(name)
    kind = draw.choice(["gone", "name", "shape", "dtype", "numbers", "more"])
    if kind == "name":
        tensors[draw.choice(["model.x", "optimizer.x.exp_avg", "optimizer.", "x", name + ".x"])] = tensor
    elif kind == "shape":
        tensors[name] = torch.cat([tensor.reshape(-1), tensor.reshape(-1)])
    elif kind == "dtype":
        tensors[name] = tensor.to(draw.choice([torch.int64, torch.float64, torch.bool, torch.complex64]))
    elif kind == "numbers":
        tensors[name] = torch.full_like(tensor, draw.choice([0, 1, 255]))
    elif kind == "more":
        tensors |= {name: tensor, f"{name}.x": torch.ones(2)}
    write_header(path, read_header(path), tensors)


def damage_checkpoint(path: Path, draw: random.Random) -> None:
    kind = draw.choice(["bytes", "tensors", "header", "header", "header"])
    if kind == "bytes":
        path.write_bytes(damage_bytes(path.read_bytes(), draw))
    elif kind == "tensors":
        damage_tensors(path, draw)
    else:
        write_header(path, damage_json(read_header(path), draw))


def damage_text(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    if draw.random() < 0.3:
        path.write_bytes(damage_bytes(content, draw))
    elif path.suffix == ".jsonl":
        path.write_bytes(damage_line(content, draw))
    else:
        path.write_text(damage_json(content.decode(), draw))


class HangError(BaseException):
    """A verb that does not come to its end."""


def outcome(*arguments: str) -> str:
    """What a verb says, in one line, where it refuses; nothing where it comes to its end."""
    out, err = io.StringIO(), io.StringIO()

    def give_up(*_: object) -> None:
        raise HangError(arguments)

    said: object = None
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            topomask(list(arguments))
    except SystemExit as stop:
        said = stop.code
    finally:
        signal.alarm(0)
    if said is None:
        return ""
    assert isinstance(said, str), said
    assert said.strip(), "the line says something"
    assert "\n" not in said, said
    assert len(said) < 2000, said[:2000]
    return said


def prepare(folder: Path) -> None:
    """A small run, and a result of a study with its run."""
    topomask(["train", "digits", "--output", str(folder / "run"), *FIELDS])
    topomask(["reproduce", *STUDY, "--results", str(folder / "results"), "--runs", str(folder / "runs")])
    write_picture(folder / "digit.png")


def choose(folder: Path, draw: random.Random) -> tuple[Path, list[str]]:
    """A file to damage, and a verb that reads it."""
    run = folder / "run"
    last = draw.choice(sorted((run / "checkpoints").glob("step-*")))
    train = ["train", "digits", "--output", str(run), "--resume", *FIELDS]
    reproduce = ["reproduce", *STUDY, "--results", str(folder / "results"), "--runs", str(folder / "runs")]
    of_study = "linear-0"
    return draw.choice(
        [
            (last, train),
            (last, [*train, "--fallback"]),
            (run / "metrics.jsonl", train),
            (run / "config.json", train),
            (last, ["eval", str(run)]),
            (run / "config.json", ["eval", str(run)]),
            (last, ["predict", str(run), str(folder / "digit.png")]),
            (run / "config.json", ["predict", str(run), str(folder / "digit.png")]),
            (folder / "results" / "digits.jsonl", reproduce),
            (folder / "results" / "digits.jsonl", [*reproduce, "--show"]),
            (folder / "runs" / "digits" / of_study / "metrics.jsonl", reproduce),
            (folder / "runs" / "digits" / of_study / "checkpoints" / "step-000000002.safetensors", reproduce),
        ]
    )


def try_case(sound: Path, folder: Path, seed: int, say: Callable[[str], None]) -> str | None:
    """Damage a copy of sound folders and run a verb; what it did, or None where it did what it must not."""
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    path, arguments = choose(folder, draw)
    if "--show" in arguments:
        arguments = [part for part in arguments if part not in ("--only", "linear", "--seeds", "0")]
    if path.suffix == ".safetensors" and "reproduce" in arguments:
        # So that the run is looked at.
        (folder / "results" / "digits.jsonl").unlink()
    if arguments[0] == "train" and path.suffix == ".jsonl" and draw.random() < 0.7:
        # So that there is something left to do.
        max((folder / "run" / "checkpoints").glob("step-*")).unlink()
    (damage_checkpoint if path.suffix == ".safetensors" else damage_text)(path, draw)
    try:
        return f"{arguments[0]} {path.suffix[1:]} {'refused' if outcome(*arguments) else 'done'}"
    except (Exception, HangError) as error:
        say(f"seed {seed}: {arguments[0]} {path.name}: {type(error).__name__}: {error}")
        say("".join(traceback.format_exception(error)[-4:]))
        return None


def main(folder: Path, first: int, cases: int) -> None:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        prepare(folder / "sound")
    found = Counter(try_case(folder / "sound", folder / "case", first + case, print) for case in range(cases))
    print(json.dumps({str(name): count for name, count in sorted(found.items(), key=str)}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
