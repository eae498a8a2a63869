"""The commands, through typer's runner: what they print, where, and with which exit code."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from alipes.cli import check, serve
from alipes.cli.cluster import load
from alipes.cli.main import app
from alipes.cli.serve import launch_specs
from alipes.gateway.config import load_cluster
from alipes.instance.contract import (
    Content,
    MemoryMap,
    ModelMap,
    Pool,
    RandomWeights,
    Region,
    Targets,
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def complaint(result: Result, code: int) -> str:
    """The one line on stderr of a command."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    [line] = result.stderr.splitlines()
    return str(line)


@pytest.fixture
def cluster_file(tmp_path: Path, tiny_folders: dict[str, Path]) -> Path:
    """Two prepared models; fixed decode steps, so that nothing is measured."""
    file = tmp_path / "alipes.yaml"
    file.write_text(
        f"""\
models:
  dense: {{source: {tiny_folders["qwen3"]}, decode_step: 0.1}}
  sparse: {{source: {tiny_folders["qwen3-moe"]}, decode_step: 0.2}}
instances:
  hot-0: {{pool: hot, models: [dense], device_bytes: 64MiB}}
  cold-0: {{pool: cold, models: [dense, sparse], device_bytes: 64MiB, threads: 1}}
gateway: {{port: 18999, endpoint: "ipc://{tmp_path}/link"}}
"""
    )
    return file


def edit(file: Path, old: str, new: str) -> Path:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


# --- init ---


def test_init_writes_a_file_that_loads_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init").exit_code == 0
    cluster = load_cluster("alipes.yaml", {})
    assert set(cluster.models) == {"smollm2-135m", "qwen3-small", "qwen3-moe-small"}
    assert cluster.models["qwen3-moe-small"].source == RandomWeights("qwen3-moe", "small", 2)
    assert cluster.instances["hot-0"].models == ("smollm2-135m",)
    assert cluster.instances["cold-0"].pool is Pool.COLD
    assert set(cluster.instances["cold-0"].models) == set(cluster.models)
    assert cluster.targets == Targets(10.0, 0.5, 0.8)
    assert (cluster.gateway.host, cluster.gateway.port) == ("127.0.0.1", 8000)
    Path("alipes.yaml").write_text("mine")
    assert complaint(run("init"), 1) == "alipes.yaml exists already; --force overwrites it"
    assert Path("alipes.yaml").read_text() == "mine"
    assert run("init", "--force").exit_code == 0
    assert Path("alipes.yaml").read_text() != "mine"


# --- check ---


def test_check_plans_every_byte_of_the_arena(cluster_file: Path) -> None:
    result = run("check", "-c", cluster_file, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["refusals"], report["warnings"]) == ([], [])
    hot, cold = report["instances"]
    assert [model["name"] for model in cold["models"]] == ["dense", "sparse"]
    assert cold["host_weight_bytes"] == sum(m["weight_bytes"] for m in cold["models"])
    for instance in (hot, cold):
        for model, shown in zip(instance["models"], instance["memory"]["models"], strict=True):
            holds = {"weights": 0, "kv": 0, "runtime": 0, "unused": 0}
            for region in shown["regions"]:
                assert region["offset"] == sum(holds.values())
                holds[region["content"]] += region["nbytes"]
            assert model["fits"]
            assert shown["model"] == model["name"]
            assert sum(holds.values()) == 64 << 20
            assert (holds["weights"], holds["kv"]) == (model["weight_bytes"], model["kv_bytes"])
            assert holds["runtime"] == instance["runtime_bytes"] > 0
            assert model["kv_offset"] in [region["offset"] for region in shown["regions"]]
    assert cold["models"][1]["decode_step"] == 0.2


def test_check_says_where_a_models_context_is_cut(
    cluster_file: Path, tiny_folders: dict[str, Path]
) -> None:
    edit(cluster_file, str(tiny_folders["qwen3-moe"]), str(tiny_folders["glm5"]))
    report = json.loads(run("check", "-c", cluster_file, "--json").stdout)
    [warning] = report["warnings"]
    assert warning.startswith("models.sparse: context is 4,096 (index_topk), not 8,192")
    assert report["instances"][1]["models"][1]["context"] == 4096


def test_check_prints_a_table_for_each_instance(cluster_file: Path) -> None:
    result = run("check", "-c", cluster_file)
    assert result.exit_code == 0
    for words in ("hot-0 (hot)", "cold-0 (cold)", "sparse", "67,108,864", "is sound"):
        assert words in result.stdout


def test_check_prints_the_map_when_asked(cluster_file: Path) -> None:
    assert "the arena" not in run("check", "-c", cluster_file).stdout
    printed = run("check", "-c", cluster_file, "--map").stdout
    memory = json.loads(run("check", "-c", cluster_file, "--json").stdout)["instances"][1]["memory"]
    assert "cold-0: the arena while each model is active" in printed
    for model in memory["models"]:
        for region in model["regions"]:
            assert f"{region['offset']:,}" in printed
            assert f"{region['nbytes']:,}" in printed
    assert "2 (0-1)" in printed
    assert "dense: float16 weights, float32 KV of " in printed
    assert "tokens, each row a block of 64" in printed
    assert f"{memory['slabs']:,} slabs of {memory['slab_bytes']:,}" in printed


def test_check_measures_what_the_file_does_not_say(cluster_file: Path) -> None:
    edit(cluster_file, ", decode_step: 0.1", "")
    report = json.loads(run("check", "-c", cluster_file, "--json").stdout)
    dense = report["instances"][0]["models"][0]
    assert 0 < dense["decode_step"] < 0.1
    assert "GB/s" in dense["decode_step_basis"]


def test_check_refuses_a_cold_set_without_a_round(cluster_file: Path) -> None:
    edit(cluster_file, "decode_step: 0.2", "decode_step: 0.4")
    line = complaint(run("check", "-c", cluster_file), 1)
    assert "instances.cold-0: one decode step of each model takes 0.500 s in all" in line
    assert "sparse 0.400 s (decode_step in the file)" in line
    assert "targets.tpot of 0.5 s" in line


def test_a_slow_hot_model_is_a_warning(cluster_file: Path) -> None:
    edit(cluster_file, "[dense, sparse]", "[sparse]")
    edit(cluster_file, "decode_step: 0.1", "decode_step: 0.7")
    line = complaint(run("check", "-c", cluster_file), 0)
    assert line.startswith("warning: instances.hot-0: one decode step of each model takes 0.7")


def test_check_refuses_what_cannot_fit_with_the_numbers(cluster_file: Path) -> None:
    edit(cluster_file, "models: [dense], device_bytes: 64MiB", "models: [dense], device_bytes: 1MB")
    result = run("check", "--map", "-c", cluster_file)
    line = complaint(result, 1)
    assert "instances.hot-0: model dense needs" in line
    assert "device_bytes is 1,000,000" in line
    [row] = [row for row in result.stdout.splitlines() if row.split()[-1:] == ["no"]]
    assert row.split()[2:4] == ["-", "-"]
    assert "dense: does not fit" in result.stdout


def test_check_warns_of_a_context_that_device_bytes_cut(cluster_file: Path) -> None:
    edit(
        cluster_file, "models: [dense], device_bytes: 64MiB", "models: [dense], device_bytes: 17MB"
    )
    result = run("check", "-c", cluster_file, "--json")
    context = json.loads(result.stdout)["instances"][0]["models"][0]["context"]
    assert 0 < context < 8192
    line = complaint(run("check", "-c", cluster_file), 0)
    cut = f"context of dense is cut from 8,192 to {context:,} by device_bytes"
    assert line == f"warning: instances.hot-0: {cut}"


def test_check_tells_how_much_of_the_other_models_an_idle_arena_holds(cluster_file: Path) -> None:
    def others() -> list[float | None]:
        report = json.loads(run("check", "-c", cluster_file, "--json").stdout)
        assert all("backend" not in one["memory"] for one in report["instances"])
        return [model["others_fit"] for one in report["instances"] for model in one["models"]]

    assert others() == [None, 1.0, 1.0]
    assert "others fit" in run("check", "-c", cluster_file).stdout
    edit(cluster_file, "sparse], device_bytes: 64MiB", "sparse], device_bytes: 21MB")
    alone, *parts = others()
    assert alone is None
    assert all(part is not None and 0 < part < 1 for part in parts)
    cluster_file.write_text(f"{cluster_file.read_text()}ablations: {{staging: false}}\n")
    assert others() == [None, None, None]
    assert "others fit" not in run("check", "-c", cluster_file).stdout


def test_check_warns_of_devices_that_are_not_here(
    cluster_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(cluster_file, "device_bytes: 64MiB}", 'device_bytes: 64MiB, device: "cuda:1"}')
    monkeypatch.setattr(check, "cuda_devices", lambda: 2)
    assert run("check", "-c", cluster_file).stderr == ""
    monkeypatch.setattr(check, "cuda_devices", lambda: 1)
    line = complaint(run("check", "-c", cluster_file), 0)
    assert line.startswith("warning: instances.hot-0.device: this machine has 1 CUDA devices")
    edit(cluster_file, 'device: "cuda:1"', 'device: "cuda:1", engine: fake')
    assert run("check", "-c", cluster_file).stderr == ""


def test_check_plans_kv_of_the_dtype_that_the_device_will_have(cluster_file: Path) -> None:
    def block_bytes() -> list[int]:
        report = json.loads(run("check", "-c", cluster_file, "--json").stdout)
        models = [model for one in report["instances"] for model in one["models"]]
        return [model["kv_bytes"] // model["kv_blocks"] for model in models]

    hot, dense, sparse = block_bytes()
    assert hot == dense
    edit(cluster_file, "device_bytes: 64MiB}", "device_bytes: 64MiB, device: cuda}")
    assert block_bytes() == [hot // 2, dense, sparse]
    edit(cluster_file, "decode_step: 0.1", "decode_step: 0.1, kv_dtype: float32")
    edit(cluster_file, "decode_step: 0.2", "decode_step: 0.2, kv_dtype: float16")
    assert block_bytes() == [hot, dense, sparse // 2]


def test_check_plans_for_each_rank(cluster_file: Path) -> None:
    whole = json.loads(run("check", "-c", cluster_file, "--json").stdout)["instances"][1]
    edit(cluster_file, "threads: 1", "threads: 1, ranks: 2")
    result = run("check", "-c", cluster_file, "--json")
    assert result.exit_code == 0
    divided = json.loads(result.stdout)["instances"][1]
    assert (whole["ranks"], divided["ranks"]) == (1, 2)
    assert divided["device_bytes"] == whole["device_bytes"]
    assert divided["host_bytes"] == whole["host_bytes"] // 2
    for part, all_ in zip(divided["models"], whole["models"], strict=True):
        assert part["weight_bytes"] < all_["weight_bytes"]
        assert part["kv_blocks"] > 2 * all_["kv_blocks"]
    assert "cold-0 (cold, each of 2 ranks)" in run("check", "-c", cluster_file).stdout


def test_check_refuses_ranks_among_which_heads_do_not_divide(cluster_file: Path) -> None:
    edit(cluster_file, "threads: 1", "threads: 1, ranks: 4")
    line = complaint(run("check", "-c", cluster_file), 1)
    assert "instances.cold-0.ranks: num_key_value_heads: 2 do not divide among 4 ranks" in line


def test_check_warns_of_unserved_models_and_too_little_memory(cluster_file: Path) -> None:
    edit(cluster_file, "[dense, sparse], device_bytes: 64MiB", "[dense], device_bytes: 900TiB")
    result = run("check", "-c", cluster_file)
    assert result.exit_code == 0
    unserved, memory = result.stderr.splitlines()
    assert "models.sparse: no instance serves it" in unserved
    assert "this machine has" in memory


def test_check_warns_of_more_threads_than_cores(cluster_file: Path) -> None:
    edit(cluster_file, "threads: 1", "threads: 100000")
    line = complaint(run("check", "-c", cluster_file), 0)
    assert line.startswith("warning: instances.cold-0.threads: 100000 threads wait for each other")
    edit(cluster_file, "threads: 100000", "threads: 100000, local: false")
    assert run("check", "-c", cluster_file).stderr == ""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "{random: {family: llama, size: tiny, seed: 9}}",
            ": not prepared; run `alipes models prepare dense -c {file}`",
        ),
        ("./none", "/none': no such folder"),
    ],
)
def test_check_refuses_unprepared_models_and_plans_the_others(
    cluster_file: Path, tmp_path: Path, source: str, told: str
) -> None:
    text = cluster_file.read_text()
    start, end = text.index("source: "), text.index(", decode_step: 0.1")
    text = text[:start] + f"source: {source}" + text[end:]
    cluster_file.write_text(f"{text}cache: {tmp_path}/cache\n")
    result = run("check", "-c", cluster_file)
    line = complaint(result, 1)
    assert line.startswith(f"{cluster_file}: models.dense")
    assert told.format(file=cluster_file) in line
    assert "cold-0 (cold, without dense)" in result.stdout
    assert "hot-0" not in result.stdout


@pytest.mark.parametrize("command", ["check", "serve", "models list"])
@pytest.mark.parametrize("source", ["family: mamba, size: tiny", "family: llama, size: huge"])
def test_random_models_that_do_not_exist_are_errors_of_the_file(
    cluster_file: Path, command: str, source: str
) -> None:
    text = cluster_file.read_text()
    start, end = text.index("source: "), text.index(", decode_step: 0.1")
    cluster_file.write_text(f"{text[:start]}source: {{random: {{{source}}}}}{text[end:]}")
    line = complaint(run(*command.split(), "-c", cluster_file), 2)
    assert line.startswith(f"{cluster_file}: models.dense.source.")
    assert "use one of" in line


def test_check_prints_the_schema(tmp_path: Path) -> None:
    result = run("check", "--schema", "-c", tmp_path / "absent.yaml")
    assert "ModelEntry" in json.loads(result.stdout)["$defs"]


@pytest.mark.parametrize(
    "command", ["check", "serve", "models list", "instance x", "drain x", "inspect"]
)
def test_a_bad_file_is_one_line_and_exit_code_2(command: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    assert "no such file" in complaint(run(*command.split(), "-c", file), 2)


# --- models ---


def test_models_list_tells_what_is_prepared(cluster_file: Path) -> None:
    rows = json.loads(run("models", "list", "-c", cluster_file, "--json").stdout)
    assert [(row["name"], row["source"] == row["folder"], row["prepared"]) for row in rows] == [
        ("dense", True, True),
        ("sparse", True, True),
    ]
    assert all(row["size_bytes"] > 1000 for row in rows)
    assert "sparse" in run("models", "list", "-c", cluster_file).stdout


def test_models_prepare_makes_the_named_ones_only(
    tmp_path: Path,
    model_cache: Path,
    tiny_folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ALIPES_CACHE", raising=False)  # it overrides the file
    file = tmp_path / "alipes.yaml"
    file.write_text(
        "models:\n"
        "  here: {source: {random: {family: qwen3, size: tiny}}}\n"
        "  gone: {source: ./nowhere}\n"
        "instances:\n  cold-0: {pool: cold, models: [here, gone]}\n"
        f"cache: {model_cache}\n"
    )
    result = run("models", "prepare", "here", "-c", file, "--json")
    [row] = json.loads(result.stdout)
    assert (row["name"], row["prepared"]) == ("here", True)
    assert row["folder"] == str(tiny_folders["qwen3"])
    failed = run("models", "prepare", "-c", file)
    assert failed.exit_code == 1
    preparing, line = failed.stderr.splitlines()
    assert preparing == "preparing gone"
    assert line.startswith("models.gone.source.path")
    assert "nowhere" in line
    (tmp_path / "file").write_text("")
    cannot = edit(file, f"cache: {model_cache}", f"cache: {tmp_path}/file/cache")
    line = run("models", "prepare", "here", "-c", cannot).stderr.splitlines()[-1]
    assert line.startswith(f"models.here: cannot be prepared in {tmp_path}/file/cache (Not a dir")
    line = complaint(run("models", "prepare", "hare", "-c", file), 2)
    assert line.endswith("models: unknown model 'hare'; did you mean 'here'?")


# --- instance, serve ---


def test_instance_needs_a_name_from_the_file(cluster_file: Path) -> None:
    line = complaint(run("instance", "cold", "-c", cluster_file), 2)
    assert line == f"{cluster_file}: instances: unknown instance 'cold'; did you mean 'cold-0'?"


def test_serve_starts_local_instances_with_their_share_of_the_cores(cluster_file: Path) -> None:
    edit(cluster_file, "threads: 1", "threads: 3")
    cold, hot = sorted(launch_specs(load(cluster_file), cluster_file), key=lambda spec: spec.name)
    assert (cold.name, hot.name) == ("cold-0", "hot-0")
    assert cold.argv[1:6] == ("-P", "-m", "alipes.cli.main", "instance", "cold-0")
    assert cold.argv[cold.argv.index("--threads") + 1] == "3"
    assert cold.argv[cold.argv.index("-c") + 1] == str(cluster_file)
    assert cold.env["OMP_NUM_THREADS"] == "3"
    assert cold.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert int(hot.env["OMP_NUM_THREADS"]) >= 1
    edit(cluster_file, "threads: 3", "threads: 3, local: false")
    assert [spec.name for spec in launch_specs(load(cluster_file), cluster_file)] == ["hot-0"]


def test_instances_on_cuda_start_able_to_park_memory(
    cluster_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "parking_environment", lambda: {"LD_PRELOAD": "/lib/saver.so"})
    edit(cluster_file, "models: [dense], ", "models: [dense], device: cuda, ")
    specs = {spec.name: spec for spec in launch_specs(load(cluster_file), cluster_file)}
    assert specs["hot-0"].env["LD_PRELOAD"] == "/lib/saver.so"
    assert "LD_PRELOAD" not in specs["cold-0"].env


def test_serve_refuses_what_check_refuses(cluster_file: Path) -> None:
    edit(cluster_file, "decode_step: 0.2", "decode_step: 0.4")
    edit(cluster_file, "models: [dense], device_bytes: 64MiB", "models: [dense], device_bytes: 1MB")
    line = complaint(run("serve", "-c", cluster_file), 1)
    assert "device_bytes is 1,000,000" in line
    assert line.endswith("(and 1 more: alipes check)")


# --- inspect, drain ---

REGIONS = (Region(Content.WEIGHTS, 0, 4321), Region(Content.KV, 4321, 6000, (1, 3, 5), 4, 500))
MEMORY = MemoryMap(
    10321, (ModelMap("dense", REGIONS),), 4321, 100, 7, backend="mapped", switching="remap"
)
SHOWN: dict[str, object] = {
    "name": "hot-0",
    "connected": True,
    "snapshot": {
        "active_model": "dense",
        "counters": {
            "switch_paths": {"remap": 3, "h2d": 1},
            "path_seconds": {"remap": 1.5, "h2d": 0.75},
            "predicted_seconds": {"remap": 0.75, "h2d": 1.0},
            "turn_seconds": 6.0,
            "switches": 3,
        },
        "staging": {"target": "sparse", "covered": {"sparse": 1234}, "slack": 5678},
        "occupancy": {
            "total": 90,
            "free": 40,
            "cached": 30,
            "held": 20,
            "host_used": 7000,
            "host_total": 8000,
            "host_held": 6500,
        },
    },
    "hello": {
        "name": "hot-0",
        "engine": "native",
        "device": "cpu",
        "pid": 1,
        "block_tokens": 64,
        "memory": msgspec.to_builtins(MEMORY),
        "kernels": {"linear": "cpu", "attend": "cpu_attention", "experts": "cpu"},
    },
}
GONE = {"name": "cold-0", "connected": False, "snapshot": None, "hello": None}


class AdminStub(BaseHTTPRequestHandler):
    """Knows hot-0, and wants a key."""

    def do_GET(self) -> None:
        assert self.path == "/admin/instances"
        self.answer(200, {"instances": [SHOWN, GONE]})

    def do_POST(self) -> None:
        good = self.headers["authorization"] == "Bearer k"
        known = self.path == "/admin/instances/hot-0/drain"
        body: dict[str, object] = {"draining": True}
        if not (good and known):
            body = {"error": {"message": "no such instance" if good else "wrong key"}}
        self.answer(200 if good and known else 400, body)

    def answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def admin(cluster_file: Path) -> Iterator[Path]:
    server = HTTPServer(("127.0.0.1", 0), AdminStub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield edit(cluster_file, "port: 18999", f"port: {server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_inspect_shows_memory_and_kernels_of_what_runs(admin: Path) -> None:
    printed = run("inspect", "-c", admin).stdout
    title = "hot-0 (native on cpu, memory mapped, switching remap), active: dense"
    for words in (title, "4,321", "6,000", "3 (1-5)", "7 slabs of 100", "cpu_attention"):
        assert words in printed
    assert [line.split() for line in printed.splitlines() if "experts" in line] == [
        ["cpu", "experts,", "linear"]
    ]
    [shown] = json.loads(run("inspect", "hot-0", "-c", admin, "--json").stdout)
    assert shown["kernels"] == {"linear": "cpu", "attend": "cpu_attention", "experts": "cpu"}
    assert msgspec.convert(shown["memory"], MemoryMap) == MEMORY


def test_inspect_shows_switches_staged_weights_and_kv(admin: Path) -> None:
    printed = run("inspect", "-c", admin).stdout
    cells = [line.split() for line in printed.splitlines()]
    assert ["h2d", "1", "0.7500", "1.0000"] in cells
    assert ["remap", "3", "0.5000", "0.2500"] in cells
    for words in (
        "of a whole turn 2.0000",
        "sparse 1,234 bytes",
        "5,678 bytes for sparse",
        "90 blocks: 40 free, 30 cached, 20 held",
        "8,000 bytes: 7,000 used, 6,500 of them held",
    ):
        assert words in printed
    [shown] = json.loads(run("inspect", "-c", admin, "--json").stdout)
    assert shown["live"]["switches"]["remap"] == {
        "count": 3,
        "mean_seconds": 0.5,
        "mean_predicted_seconds": 0.25,
    }
    assert shown["live"]["staging"]["covered"] == {"sparse": 1234}
    assert (shown["live"]["kv"]["cached"], shown["live"]["kv"]["host_used"]) == (30, 7000)


def test_inspect_of_an_instance_without_a_snapshot(
    admin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHOWN, "snapshot", None)
    [shown] = json.loads(run("inspect", "-c", admin, "--json").stdout)
    assert (shown["active_model"], shown["live"]) == ("", None)
    assert "active: no model" in run("inspect", "-c", admin).stdout


def test_inspect_of_what_is_not_there(admin: Path) -> None:
    assert complaint(run("inspect", "cold-0", "-c", admin), 1) == "cold-0 is not connected"
    line = complaint(run("inspect", "hot", "-c", admin), 2)
    assert line.endswith("instances: unknown instance 'hot'; did you mean 'hot-0'?")


def test_drain_asks_the_gateway(admin: Path) -> None:
    assert "hot-0 drains" in run("drain", "hot-0", "-c", admin, "--api-key", "k").stdout
    assert complaint(run("drain", "hot-0", "-c", admin), 1).endswith("refuses: wrong key")
    line = complaint(run("drain", "cold-0", "-c", admin, "--api-key", "k"), 1)
    assert line.endswith("refuses: no such instance")


def test_drain_without_a_gateway_or_with_a_wrong_name(cluster_file: Path) -> None:
    assert "no gateway answers at" in complaint(run("drain", "hot-0", "-c", cluster_file), 1)
    line = complaint(run("drain", "hot", "-c", cluster_file), 2)
    assert line.endswith("instances: unknown instance 'hot'; did you mean 'hot-0'?")
