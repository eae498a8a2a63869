"""Sessions that return: Talaria Algorithm 1, lines 1 to 9, and the completion hook of 4.1."""

from __future__ import annotations

from collections.abc import Mapping

from alipes.gateway.routing.admission import misfit
from alipes.gateway.routing.appraisal import Appraiser
from alipes.gateway.routing.decision import CallShape, Completion
from alipes.gateway.routing.instances import SECOND, InstanceState
from alipes.gateway.routing.leases import Lease, LeaseTable
from alipes.instance.contract import Pool


class Returns:
    """Holds places for sessions whose call has finished, and gives them to the next one."""

    def __init__(self, seconds: float, leases: LeaseTable, appraiser: Appraiser) -> None:
        self._lasting = int(seconds * SECOND)
        self._leases = leases
        self._appraiser = appraiser

    def take(
        self, call: CallShape, instances: Mapping[str, InstanceState], now: int
    ) -> InstanceState | None:
        """End the live lease of the branch that calls: consumed when it is good for something,
        and then the instance that it holds a place on wins, else discarded. On a hot instance a
        lease charges load and no more, and has done so when the call arrives."""
        lease = self._leases.of(call.branch, now)
        if lease is None:
            return None
        instance = instances[lease.instance]
        if not self._good(lease, call, instance):
            self._leases.discard(call.branch)
            return None
        self._leases.consume(call.branch)
        hot = instance.hello is not None and instance.hello.pool is Pool.HOT
        return None if hot else instance

    def finished(
        self, call: CallShape, instance: InstanceState, completion: Completion, now: int
    ) -> None:
        """Hold a place for the branch's next call, where its prefix is; none without a prefix to
        come back to, nor where none is expected or no call may go."""
        if call.final or not call.branch or not completion.prefix or not self._lasting:
            return
        if instance.hello is None or not instance.healthy:
            return
        self._leases.install(
            Lease(
                branch=call.branch,
                model=call.model,
                instance=instance.name,
                incarnation=instance.hello.incarnation,
                prefix=completion.prefix,
                prefix_tokens=completion.prefix_tokens,
                expires=now + self._lasting,
                charge=self._appraiser.admission_unit(call.model),
            )
        )

    def _good(self, lease: Lease, call: CallShape, instance: InstanceState) -> bool:
        """The instance is healthy, the same process as then, can hold the call, and has on the
        device or the host all blocks that the prompt shares with the lease's prefix. A stale
        state or a missed beat keeps only unreserved calls away."""
        hello, report = instance.hello, instance.reports.get(call.model)
        if hello is None or report is None or not instance.healthy:
            return False
        if (lease.model, lease.incarnation) != (call.model, hello.incarnation):
            return False
        size = hello.block_tokens
        if misfit(report, size, call.prompt_tokens, call.max_tokens):
            return False
        shared = shared_tokens(lease, call, report.kv_format, size)
        return 0 < shared <= self._appraiser.locality(call, instance).present


def shared_tokens(lease: Lease, call: CallShape, kv_format: str, block_tokens: int) -> int:
    """Tokens of whole blocks that the new prompt has in common with the lease's prefix: all of
    it where the prompt goes on from there; else, as where the client's template or tokenizer
    changed the reply, what of the prompt the branch had before. A prompt's last token is computed
    in any case. 0 without a path: nothing can be proven then."""
    if call.path is None:
        return 0
    keys, last = call.path.keys(kv_format), lease.prefix_tokens // block_tokens - 1
    extends = 0 <= last < len(keys) and keys[last] == lease.prefix
    common = lease.prefix_tokens if extends else min(call.known_tokens, lease.prefix_tokens)
    return max(0, min(common, call.prompt_tokens - 1)) // block_tokens * block_tokens
