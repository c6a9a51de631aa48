"""Files that want to harm: refused, nothing executed, memory bounded."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smoothrl.agents.importers import (
    import_cleanrl,
    import_denoiser,
    import_q_network,
    import_released,
    import_sb3,
    kind_of,
    read_statistics,
)
from smoothrl.agents.importers.safe_pickle import read_pickle
from smoothrl.errors import UserError

from . import pickles as p

Make = Callable[[Path], bytes | None]
CASES: dict[str, Make] = {}
MARK = "executed"


def case(make: Make) -> Make:
    CASES[make.__name__.removeprefix("make_")] = make
    return make


def plain(path: Path, body: bytes, storages: p.Storages | None = None) -> None:
    p.write_torch(path, body, storages or p.Storages())


CODE = {
    "os_system": ("os.system", "touch " + MARK),
    "posix_system": ("posix.system", "touch " + MARK),
    "eval": ("builtins.eval", f"open({MARK!r}, 'w')"),
    "exec": ("builtins.exec", f"open({MARK!r}, 'w')"),
    "old_eval": ("__builtin__.eval", f"open({MARK!r}, 'w')"),
    "open": ("io.open", MARK, "w"),
    "popen": ("subprocess.Popen", "touch " + MARK),
    "import_module": ("importlib.import_module", "this"),
    "getattr": ("builtins.getattr", "x", "__class__"),
    "numpy_load": ("numpy.load", MARK),
    "numpy_testing": ("numpy.testing._private.utils.runstring", f"open({MARK!r}, 'w')", {}),
    "torch_load": ("torch.load", MARK),
    "torch_hub": ("torch.hub.load", "x", "y"),
    "marshal": ("marshal.loads", b"x"),
    "cloudpickle": ("cloudpickle.cloudpickle._make_function", 1),
    "webbrowser": ("webbrowser.open", "http://localhost"),
    "copyreg": ("copyreg._reconstructor", 1),
    "operator": ("operator.attrgetter", "x"),
    "functools": ("functools.partial", "x"),
    "pickle_in_pickle": ("pickle.loads", pickle.dumps(1)),
    "path_write": ("pathlib.PosixPath.write_text", MARK),
}


def code_case(path: str, *args: object) -> Make:
    def make(target: Path) -> bytes | None:
        plain(target, p.dic([(p.text("policy_model"), p.bomb(path, *args)), (p.text("envs"), p.lst())]))
        return None

    return make


for _name, _call in CODE.items():
    CASES["code_" + _name] = code_case(*_call)


@case
def make_code_deep_inside_the_environment(path: Path) -> None:
    p.released(path, evil=p.bomb("os.system", "touch " + MARK))


@case
def make_code_in_an_optimiser_nobody_reads(path: Path) -> None:
    p.released(path, extra=[(p.text("policy_opt"), p.bomb("os.system", "touch " + MARK))])


@case
def make_code_by_build_of_an_allowed_name(path: Path) -> None:
    p.released(path, evil=p.glob("collections.OrderedDict") + b"}b")


@case
def make_code_by_inst(path: Path) -> None:
    plain(path, b"(" + p.text("touch " + MARK) + b"ios\nsystem\n")


@case
def make_code_by_obj(path: Path) -> None:
    plain(path, b"(" + p.glob("collections.OrderedDict") + p.text("x") + b"o")


@case
def make_code_by_extension(path: Path) -> None:
    plain(path, b"\x82\x01)R")


@case
def make_stack_global_of_something_else(path: Path) -> None:
    plain(path, p.text("os") + p.text("system") + b"\x93" + p.tup(p.text("touch " + MARK)) + b"R")


@case
def make_name_with_dots_walks_attributes(path: Path) -> None:
    plain(path, p.text("numpy") + p.text("dtype.__class__.__subclasses__") + b"\x93)R")


@case
def make_newobj_ex(path: Path) -> None:
    plain(path, p.glob("collections.OrderedDict") + b")}\x92")


@case
def make_persistent_id_by_text(path: Path) -> None:
    plain(path, b"Pstorage\n")


@case
def make_raw_pickle_instead_of_a_zip(path: Path) -> bytes:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return os.system, ("touch " + MARK,)

    return pickle.dumps({"policy_model": Evil()})


@case
def make_empty_file(path: Path) -> bytes:
    return b""


@case
def make_noise(path: Path) -> bytes:
    return np.random.default_rng(0).bytes(5000)


@case
def make_truncated_zip(path: Path) -> bytes:
    p.released(path)
    return path.read_bytes()[:-200]


@case
def make_zip_cut_in_front(path: Path) -> bytes:
    p.released(path)
    return path.read_bytes()[5000:]


@case
def make_truncated_pickle(path: Path) -> bytes:
    return p.zip_of({"archive/data.pkl": p.stream(p.dic([(p.text("policy_model"), b"N")]))[:-9]})


@case
def make_pickle_without_stop(path: Path) -> bytes:
    return p.zip_of({"archive/data.pkl": b"\x80\x02}"})


@case
def make_damaged_tensor_bytes(path: Path) -> bytes:
    p.released(path)
    data = bytearray(path.read_bytes())
    at = data.find(b"archive/data/3")
    data[at + 40] ^= 0xFF
    return bytes(data)


@case
def make_zip_bomb(path: Path) -> bytes:
    return p.zip_of(
        {"archive/data.pkl": p.stream(p.dic([])), "archive/data/0": bytes(60 << 20)}, zipfile.ZIP_DEFLATED
    )


@case
def make_pickle_bomb_in_deflate(path: Path) -> bytes:
    return p.zip_of({"archive/data.pkl": b"\x80\x02" + b"]" * (60 << 20)}, zipfile.ZIP_DEFLATED)


@case
def make_zip_that_lies_about_sizes(path: Path) -> bytes:
    data = bytearray(p.zip_of({"archive/data.pkl": p.stream(b"}" + b"0}" * 2000)}, zipfile.ZIP_DEFLATED))
    at = data.find(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFFF0)
    return bytes(data)


@case
def make_overlapping_entries(path: Path) -> bytes:
    entries = {
        "archive/data.pkl": p.stream(p.dic([])),
        "archive/data/0": bytes(5000),
        "archive/data/1": bytes(5000),
    }
    data = bytearray(p.zip_of(entries))
    places = [i for i in range(len(data) - 4) if data[i : i + 4] == b"PK\x01\x02"]
    data[places[2] + 42 : places[2] + 46] = data[places[1] + 42 : places[1] + 46]
    return bytes(data)


@case
def make_ten_thousand_entries(path: Path) -> bytes:
    return p.zip_of(
        {"archive/data.pkl": p.stream(p.dic([])), **{f"archive/x{i}": b"" for i in range(10_500)}}
    )


@case
def make_encrypted_flag(path: Path) -> bytes:
    data = bytearray(p.zip_of({"archive/data.pkl": p.stream(p.dic([]))}))
    at = data.find(b"PK\x01\x02")
    data[at + 8] |= 1
    return bytes(data)


@case
def make_two_pickles(path: Path) -> bytes:
    body = p.stream(p.dic([]))
    return p.zip_of({"archive/data.pkl": body, "other/data.pkl": body})


@case
def make_too_many_instructions(path: Path) -> None:
    plain(path, b"N0" * 120_000 + b"}")


@case
def make_billion_laughs(path: Path) -> None:
    layers = b"".join(b"(" + b"h" + bytes([i]) * 1 + (b"h" + bytes([i])) * 9 + b"l" for i in range(20))
    plain(path, b"]q\x00" + layers)


@case
def make_shared_tuples_as_a_key(path: Path) -> None:
    grow = b"".join(b"2\x86" for _ in range(60))
    plain(path, b"}" + b"N" + grow + b"Ns")


@case
def make_nested_fifty_thousand_deep(path: Path) -> None:
    deep = b"(" * 50_000 + b"t" * 50_000
    plain(path, p.dic([(p.text("policy_model"), deep), (p.text("envs"), p.lst())]))


@case
def make_huge_integer(path: Path) -> None:
    digits = b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20)
    p.released(path, extra=[(p.text("policy_model"), digits)])


@case
def make_string_longer_than_the_file(path: Path) -> None:
    plain(path, b"X" + struct.pack("<I", 0xFFFFFFF0) + b"abc")


@case
def make_bytes_longer_than_memory(path: Path) -> None:
    plain(path, b"\x8e" + struct.pack("<Q", 1 << 62) + b"abc")


def tensor_case(name: str, **settings: object) -> None:
    def make(path: Path) -> None:
        storages = p.Storages()
        bad = storages.tensor(np.zeros(64, np.float32), **settings)  # type: ignore[arg-type]
        state = p.dic([(p.text("log_stdev"), bad)])
        plain(path, p.dic([(p.text("policy_model"), state), (p.text("envs"), p.lst())]), storages)

    CASES["tensor_" + name] = make


tensor_case("beyond_its_storage", shape=(8, 9), stride=(9, 1))
tensor_case("negative_offset", offset=-4)
tensor_case("negative_stride", stride=(-1,))
tensor_case("huge_from_nothing", shape=(30_000, 30_000), stride=(0, 0))
tensor_case("huge_shape", shape=(2_000_000_000,), stride=(0,))
tensor_case("negative_shape", shape=(-1,))
tensor_case("sixty_dimensions", shape=(1,) * 60, stride=(1,) * 60)
tensor_case("storage_claims_more", count=2_000_000_000)
tensor_case("storage_of_unknown_type", kind="torch.QInt8Storage")
tensor_case("storage_outside", key="../../etc/passwd", count=1)
tensor_case("strides_do_not_fit", shape=(8, 8), stride=(1,))


@case
def make_many_views_of_one_big_storage(path: Path) -> None:
    storages = p.Storages()
    big = np.zeros(2 << 20, np.float32)
    views = [(p.text(f"x{i}"), storages.tensor(big, key="0")) for i in range(40)]
    plain(path, p.dic([(p.text("policy_model"), p.dic(views)), (p.text("envs"), p.lst())]), storages)


def statistic_case(name: str, mean: bytes) -> None:
    def make(path: Path) -> None:
        stat = p.obj(
            "policy_gradients.torch_utils.RunningStat", _n=p.integer(9), _M=mean, _S=p.ndarray(np.ones(17))
        )
        state = p.obj("policy_gradients.torch_utils.ZFilter", clip=p.real(10.0), rs=stat)
        p.released(path, state_filter=state)

    CASES["statistics_" + name] = make


statistic_case("huge_array", p.ndarray(np.ones(17), shape=p.tup(p.integer(2**31 - 1), p.integer(2**31 - 1))))
statistic_case("objects", p.ndarray(np.ones(17), code="O8"))
statistic_case("code_in_dtype", p.ndarray(np.ones(17), code="V136"))
statistic_case("not_finite", p.ndarray(np.full(17, np.nan)))
statistic_case("too_few", p.ndarray(np.ones(3)))
statistic_case("text", p.text("0, 0, 0"))
statistic_case("bytes_that_are_none", p.ndarray(np.ones(17), raw=p.text("\u0100" * 136)))


@case
def make_one_text_encoded_again_and_again(path: Path) -> None:
    text = p.text("a" * (4 << 20)) + b"q\x01" + p.text("latin1") + b"q\x02"
    plain(path, p.glob("_codecs.encode") + b"q\x00" + text + b"h\x00h\x01h\x02\x86R" * 1000 + b"}")


@case
def make_keys_that_all_collide(path: Path) -> None:
    keys = b"".join(b"\x8a\x10" + (i * (2**61 - 1)).to_bytes(16, "little") + b"N" for i in range(1, 50_000))
    plain(path, b"}(" + keys + b"u")


@case
def make_directory_of_a_million_entries(path: Path) -> bytes:
    data = p.zip_of({"archive/data.pkl": p.stream(p.dic([]))})
    start, end = data.find(b"PK\x01\x02"), data.find(b"PK\x05\x06")
    entries = data[start:end] * 300_000
    return data[:start] + entries + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entries), start, 0)


@case
def make_compressed_storage_read_again_and_again(path: Path) -> None:
    storages = p.Storages()
    big = np.tile(np.random.default_rng(0).standard_normal(1000).astype(np.float32), 4 << 10)
    views = [(p.text(f"x{i}"), storages.tensor(big, key="0")) for i in range(4)]
    body = p.dic([(p.text("policy_model"), p.dic(views)), (p.text("envs"), p.lst())])
    p.write_torch(path, body, storages, compression=zipfile.ZIP_DEFLATED)


@case
def make_entries_that_climb_out_of_the_folder(path: Path) -> bytes:
    return p.zip_of({"../../data.pkl": p.stream(p.dic([])), "/etc/data.pkl": b"x", "../" + MARK: b"x"})


@case
def make_adversary_without_anything(path: Path) -> None:
    p.released(path, extra=[(p.text("adversary_policy_model"), p.dic([]))])


def layers_case(name: str, sizes: dict[str, tuple[int, ...]]) -> None:
    """Layers that claim sizes for which they hold no numbers."""

    def make(path: Path) -> None:
        storages = p.Storages()
        empty = {
            p.text(k): storages.tensor(np.zeros(min(1, int(np.prod(s)))), shape=s, stride=(0,) * len(s))
            for k, s in sizes.items()
        }
        plain(path, p.dic(list(empty.items())), storages)

    CASES["layers_" + name] = make


HUGE = 60_000_000
layers_case(
    "of_an_empty_nature_cnn",
    {
        "cnn.0.weight": (32, 1, 8, 0),
        "cnn.0.bias": (0,),
        "advantage.0.weight": (HUGE, 0),
        "advantage.0.bias": (0,),
        "advantage.2.weight": (4, 0),
        "advantage.2.bias": (0,),
    },
)
layers_case("of_an_empty_cleanrl_cnn", {"network.0.weight": (32, HUGE, 8, 0), "network.7.weight": (HUGE, 0)})
layers_case("of_an_empty_mlp", {"network.0.weight": (0, HUGE), "network.0.bias": (0,)})
layers_case("without_an_actor", {"actor_logstd": (1, 1)})
layers_case(
    "of_a_flat_denoiser", {"dncnn.0.weight": (1,), **{f"dncnn.{i}.weight": (1, 1, 1, 1) for i in (2, 4, 6)}}
)
layers_case("of_an_empty_denoiser", {f"dncnn.{i}.weight": (HUGE, HUGE, 3, 0) for i in (0, 2, 4, 6)})


def old_format(body: bytes, rest: bytes = b"") -> bytes:
    """A file of torch.save before 1.6."""
    magic = b"\x80\x02\x8a\x0a" + (0x1950A86A20F9469CFC6C).to_bytes(10, "little") + b"."
    system = p.stream(p.dic([(p.text("little_endian"), b"\x88")]))
    return magic + p.stream(p.integer(1001)) + system + body + rest


@case
def make_old_format_with_code(path: Path) -> bytes:
    return old_format(p.stream(p.dic([(p.text("policy_model"), p.bomb("os.system", "touch " + MARK))])))


@case
def make_old_format_text_longer_than_memory(path: Path) -> bytes:
    return old_format(b"\x80\x02X" + struct.pack("<I", 0xFFFFFFF0) + b"abc")


@case
def make_old_format_storage_longer_than_memory(path: Path) -> bytes:
    reference = p.tup(
        p.text("storage"),
        p.glob("torch.FloatStorage"),
        p.text("0"),
        p.text("cpu"),
        b"\x8a\x08" + (1 << 60).to_bytes(8, "little"),
    )
    return old_format(
        p.stream(reference + b"Q"), p.stream(p.lst(p.text("0"))) + struct.pack("<Q", 1 << 60) + b"x"
    )


@case
def make_policy_of_another_shape(path: Path) -> None:
    p.released(path, observations=11)
    other, _ = p.released(path.with_suffix(".other"), observations=17)
    with zipfile.ZipFile(path) as first, zipfile.ZipFile(other) as second:
        entries = {n: second.read(n) for n in second.namelist()}
        entries["archive/data.pkl"] = first.read("archive/data.pkl")
    path.write_bytes(p.zip_of(entries))


@case
def make_list_instead_of_a_dictionary(path: Path) -> None:
    plain(path, p.lst(p.text("policy_model")))


@case
def make_json_instead(path: Path) -> bytes:
    return b'{"policy_model": [1, 2, 3]}'


@case
def make_wrong_byte_order(path: Path) -> None:
    p.write_torch(path, p.dic([]), p.Storages(), extra={"archive/byteorder": b"big"})


def write(name: str, folder: Path) -> Path:
    path = folder / "walker_sgld_median.model"
    data = CASES[name](path)
    if data is not None:
        path.write_bytes(data)
    return path


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", sorted(CASES))
def test_hostile_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        import_released(path)
    assert not (tmp_path / MARK).exists()
    assert str(error.value).startswith(str(path))
    assert len(str(error.value)) < 600 + len(str(path))


@pytest.mark.parametrize("name", sorted(n for n in CASES if n.startswith("code_") and n[5:] in CODE))
def test_refusal_names_what_the_file_wanted(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=CODE[name[5:]][0].replace(".", r"\.")):
        import_released(write(name, tmp_path))


SPARE = 256 << 20
"""Bytes that reading any one of the files may take."""

READ_ALL = f"""
import pathlib, resource, sys
from smoothrl.agents import importers
from smoothrl.errors import UserError

readers = {{
    "released": importers.import_released,
    "denoiser": importers.import_denoiser,
    "q-network": lambda path: importers.import_q_network(path, "X"),
    "cleanrl": lambda path: importers.import_cleanrl(path, "X"),
    "sb3": lambda path: importers.import_sb3(path.with_suffix(".zip"), "X"),
    "statistics": importers.read_statistics,
}}
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + {SPARE}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.model")):
    for name, read in readers.items():
        try:
            read(path)
            print(name, path.name, "was read")
        except UserError:
            pass
        except BaseException as error:
            print(name, path.name, type(error).__name__, error)
"""


def sb3_with(weights: bytes) -> bytes:
    """A file of Stable-Baselines3 with these weights; all else in it is in order."""
    box = p.obj("gymnasium.spaces.box.Box", low=p.ndarray(-np.ones(4)), high=p.ndarray(np.ones(4)))
    discrete = p.obj("gymnasium.spaces.discrete.Discrete", n=p.integer(2), start=p.integer(0))
    spaces = {
        name: {":serialized:": base64.b64encode(p.stream(space)).decode()}
        for name, space in (("observation_space", box), ("action_space", discrete))
    }
    return p.zip_of({"data": json.dumps(spaces).encode(), "policy.pth": weights})


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_no_importer_runs_reads_or_unfolds_any_of_them(tmp_path: Path) -> None:
    """Every file through every importer, in one process that may take little more memory than it has."""
    for name in CASES:
        path = tmp_path / f"{name}.model"
        write(name, tmp_path).rename(path)
        path.with_suffix(".zip").write_bytes(sb3_with(path.read_bytes()))
    found = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert (found.stdout, found.returncode) == ("", 0), found.stdout[:2000] + found.stderr[-2000:]
    assert not (tmp_path / MARK).exists()


def refuses(read: Callable[[Path], object], path: Path) -> None:
    with pytest.raises(UserError):
        read(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), tmp_path / "none"):
        for read in (
            import_released,
            import_denoiser,
            read_statistics,
            kind_of,
            lambda x: import_sb3(x, "X"),
            lambda x: import_cleanrl(x, "X"),
            lambda x: import_q_network(x, "X"),
        ):
            refuses(read, path)


def statistics_file(header: str, data: bytes) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data
    return p.zip_of({"mean.npy": npy, "var.npy": npy})


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (60000, 60000, 0), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': ('1',), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "__import__('os').system('touch executed')",
    ],
)
def test_hostile_statistics(header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.npz").write_bytes(statistics_file(header, bytes(8)))
    refuses(read_statistics, tmp_path / "s.npz")
    assert not (tmp_path / MARK).exists()


def damaged(state: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One tensor of a good file is gone, of another shape, empty, or not finite."""
    name = rng.choice(sorted(k for k in state if k != "actor_logstd"))
    value = state[name]
    changes = [
        None,
        np.ones((1,) * 6),
        value.reshape(-1) if value.ndim > 1 else value[:-1],
        value[:0],
        value[None],
        np.full_like(value, np.nan),
    ]
    change = changes[rng.integers(len(changes))]
    rest = {k: v for k, v in state.items() if k != name}
    return rest if change is None else {**rest, name: np.asarray(change)}


def linear(name: str, *sizes: int) -> dict[str, np.ndarray]:
    return {f"{name}.weight": np.ones(sizes), f"{name}.bias": np.ones(sizes[0])}


GOOD: dict[str, tuple[dict[str, np.ndarray], Callable[[Path], object]]] = {
    "cleanrl-ppo": (
        {"actor_logstd": np.zeros((1, 2)), **linear("actor_mean.0", 2, 4), **linear("critic.0", 1, 4)},
        lambda path: import_cleanrl(path, "X"),
    ),
    "cleanrl-dqn": (
        {**linear("network.0", 5, 4), **linear("network.2", 2, 5)},
        lambda path: import_cleanrl(path, "X"),
    ),
    "denoiser": (
        {
            **linear("dncnn.0", 3, 1, 3, 3),
            "dncnn.2.weight": np.ones((3, 3, 3, 3)),
            **{f"dncnn.3.{k}": np.ones(3) for k in ("weight", "bias", "running_mean", "running_var")},
            "dncnn.5.weight": np.ones((1, 3, 3, 3)),
        },
        import_denoiser,
    ),
    "sb3-dqn": (
        {**linear("q_net.q_net.0", 5, 4), **linear("q_net.q_net.2", 2, 5)},
        lambda path: import_sb3(path, "X"),
    ),
    "sb3-ppo": (
        {
            **linear("mlp_extractor.policy_net.0", 5, 4),
            **linear("mlp_extractor.value_net.0", 5, 4),
            **linear("action_net", 2, 5),
            **linear("value_net", 1, 5),
        },
        lambda path: import_sb3(path, "X"),
    ),
}


@pytest.mark.parametrize("name", sorted(GOOD))
def test_damaged_weights_are_refused_and_good_ones_read(name: str, tmp_path: Path) -> None:
    state, read = GOOD[name]
    rng = np.random.default_rng(0)
    path = tmp_path / "file"

    def stored(values: dict[str, np.ndarray]) -> Path:
        storages = p.Storages()
        p.write_torch(path, storages.state_dict(values), storages)
        if name.startswith("sb3"):
            path.write_bytes(sb3_with(path.read_bytes()))
        return path

    read(stored(state))
    for _ in range(60):
        refuses(read, stored(damaged(state, rng)))


def test_every_truncation_of_a_good_file_is_refused(tmp_path: Path) -> None:
    path, _ = p.released(tmp_path / "walker_sgld_median.model")
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            import_released(path)


def test_random_damage_never_gives_anything_but_an_agent_or_a_refusal(tmp_path: Path) -> None:
    path, _ = p.released(tmp_path / "walker_sgld_median.model")
    with zipfile.ZipFile(path) as archive:
        entries = {n: archive.read(n) for n in archive.namelist()}
    rng = np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(entries["archive/data.pkl"])
        for at in rng.integers(0, len(data), 3):
            data[at] = rng.integers(256)
        path.write_bytes(p.zip_of({**entries, "archive/data.pkl": bytes(data)}))
        with contextlib.suppress(UserError):
            import_released(path)


def test_random_pickles_never_crash_the_reader() -> None:
    rng = np.random.default_rng(1)
    opcodes = np.frombuffer(b"(.0121JKMN}]t)\x85\x86\x87suaeRb\x81\x88\x89qrhj\x94Q", np.uint8)
    for _ in range(3000):
        body = bytes(rng.choice(opcodes, rng.integers(1, 60)))
        with contextlib.suppress(UserError):
            read_pickle(b"\x80\x02" + body + b".", frozenset())


def test_reader_agrees_with_pickle_on_plain_data() -> None:
    value = {"a": [1, 2.5, None, True, "é", b"x"], "b": ({"c": ()}, -(2**70)), "d": "x" * 300}
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps(value, protocol)
        if protocol == 2:
            data = pickle.dumps({k: v for k, v in value.items() if k != "a"}, 2)
            assert read_pickle(data, frozenset()) == {k: v for k, v in value.items() if k != "a"}
            continue
        assert read_pickle(data, frozenset()) == value


def test_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    asked: list[str] = []
    real = builtins.__import__

    def spy(name: str, *rest: object, **more: object) -> object:
        asked.append(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    buffer = io.BytesIO(p.stream(p.call("antigravity.thing", p.text("x"))))
    monkeypatch.setattr(builtins, "__import__", spy)
    with pytest.raises(UserError):
        read_pickle(buffer.read(), frozenset())
    monkeypatch.undo()
    read_pickle(p.stream(p.call("antigravity.thing", p.text("x"))), frozenset({"antigravity.thing"}))
    assert "antigravity" not in asked
