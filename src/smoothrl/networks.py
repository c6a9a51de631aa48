"""The networks of the paper, each built from a plain description and never from code in a file.

A network is a map from one normalised observation to one output: Q-values or an action mean. Every row of
a batch is treated on its own; `batch_dependent` names the layers that would break that.
Learners train pools (several seeds at once): `PoolMLP` and `PoolGaussianPolicy` carry a leading pool axis.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from smoothrl.errors import UserError, unknown

Description = dict[str, Any]
Statistics = Literal["frozen", "image", "batch"]


class _Tanh(torch.autograd.Function):
    """tanh through NumPy's vector kernels, twelve times faster than torch's on a CPU, equal to one ulp."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.from_numpy(np.tanh(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grads[0], y)  # type: ignore[no-any-return]


def fast_tanh(x: Tensor) -> Tensor:
    """tanh; on a CPU in float32 by the fastest kernel at hand."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return torch.tanh(x)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Tanh.apply(x)  # type: ignore[no-any-return,no-untyped-call]
    return torch.from_numpy(np.tanh(x.detach().numpy()))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": fast_tanh, "relu": torch.relu}


class MLP(nn.Module):
    """Linear layers with one activation between them."""

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int] = (64, 64), activation: str = "tanh"
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        sizes = [inputs, *hidden, outputs]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.activation = activation

    @property
    def sizes(self) -> list[int]:
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        return [first.in_features, *(int(layer.out_features) for layer in self.layers)]  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.activation]
        for layer in self.layers[:-1]:
            x = act(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]

    @property
    def description(self) -> Description:
        inputs, *hidden, outputs = self.sizes
        return {
            "kind": "mlp",
            "inputs": inputs,
            "outputs": outputs,
            "hidden": hidden,
            "activation": self.activation,
        }


class GaussianPolicy(nn.Module):
    """N(mean(s), exp(log_std)^2) with a state-independent log_std; forward gives the mean."""

    def __init__(
        self, observations: int, actions: int, hidden: Sequence[int] = (64, 64), activation: str = "tanh"
    ) -> None:
        super().__init__()
        self.mean = MLP(observations, actions, hidden, activation)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, x: Tensor) -> Tensor:
        return self.mean(x)  # type: ignore[no-any-return]

    @property
    def description(self) -> Description:
        observations, *hidden, actions = self.mean.sizes
        return {
            "kind": "gaussian-policy",
            "observations": observations,
            "actions": actions,
            "hidden": hidden,
            "activation": self.mean.activation,
        }


class DuelingMLP(nn.Module):
    """Q = V + A - mean(A) on a vector observation."""

    def __init__(
        self, observations: int, actions: int, hidden: Sequence[int] = (128, 128), dueling: bool = True
    ) -> None:
        super().__init__()
        self.body = MLP(observations, hidden[-1], hidden[:-1], "relu")
        self.advantage = nn.Linear(hidden[-1], actions)
        self.value = nn.Linear(hidden[-1], 1) if dueling else None

    def forward(self, x: Tensor) -> Tensor:
        return _duel(torch.relu(self.body(x.flatten(1))), self.advantage, self.value)

    @property
    def description(self) -> Description:
        observations, *hidden = self.body.sizes
        return {
            "kind": "q-mlp",
            "observations": observations,
            "actions": self.advantage.out_features,
            "hidden": hidden,
            "dueling": self.value is not None,
        }


def _duel(features: Tensor, advantage: nn.Module, value: nn.Module | None) -> Tensor:
    """The heads joined in float32 at least: in bfloat16 the gaps between actions drown beside the value."""
    a: Tensor = advantage(features)
    if value is None:
        return a
    wide = torch.promote_types(a.dtype, torch.float32)
    a, v = a.to(wide), value(features).to(wide)
    joined: Tensor = v + a - a.mean(dim=-1, keepdim=True)
    return joined


class NatureQ(nn.Module):
    """The dueling Nature CNN on (channels, 84, 84); `width` scales the convolutions, `hidden` the heads."""

    def __init__(
        self, channels: int, actions: int, hidden: int = 512, width: float = 1.0, dueling: bool = True
    ) -> None:
        super().__init__()
        c1, c2, c3 = (max(1, round(n * width)) for n in (32, 64, 64))
        self.cnn = nn.Sequential(
            nn.Conv2d(channels, c1, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(c1, c2, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(c2, c3, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.advantage = nn.Sequential(nn.Linear(c3 * 49, hidden), nn.ReLU(), nn.Linear(hidden, actions))
        self.value = (
            nn.Sequential(nn.Linear(c3 * 49, hidden), nn.ReLU(), nn.Linear(hidden, 1)) if dueling else None
        )
        self.description: Description = {
            "kind": "q-nature",
            "channels": channels,
            "actions": actions,
            "hidden": hidden,
            "width": width,
            "dueling": dueling,
        }

    def forward(self, x: Tensor) -> Tensor:
        return _duel(self.cnn(x), self.advantage, self.value)


class SmallQ(nn.Module):
    """A small dueling CNN for MinAtar's 10 x 10 boards."""

    def __init__(
        self,
        channels: int,
        actions: int,
        size: int = 10,
        filters: int = 16,
        hidden: int = 128,
        dueling: bool = True,
    ) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(channels, filters, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(filters * (size - 2) ** 2, hidden),
            nn.ReLU(),
        )
        self.advantage = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1) if dueling else None
        self.description: Description = {
            "kind": "q-small",
            "channels": channels,
            "actions": actions,
            "size": size,
            "filters": filters,
            "hidden": hidden,
            "dueling": dueling,
        }

    def forward(self, x: Tensor) -> Tensor:
        return _duel(self.cnn(x), self.advantage, self.value)


class Norm2d(nn.Module):
    """Batch normalisation that says whose statistics it uses.

    `frozen`: running statistics outside training (a fixed function of one image); `image`: the statistics
    of each image alone; `batch`: the statistics of whatever batch comes, as the released code does always.
    """

    def __init__(
        self, channels: int, statistics: Statistics = "frozen", eps: float = 1e-4, momentum: float = 0.05
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.statistics: Statistics = statistics
        self.eps, self.momentum = eps, momentum

    @property
    def mixes_batch(self) -> bool:
        return self.statistics == "batch" or (self.statistics == "frozen" and self.training)

    def forward(self, x: Tensor) -> Tensor:
        if self.statistics == "image":
            return nn.functional.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)
        return nn.functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.mixes_batch,
            momentum=self.momentum,
            eps=self.eps,
        )


class DnCNN(nn.Module):
    """The paper's denoiser: it predicts the noise, D(x) = x - net(x); it starts as the identity."""

    def __init__(
        self, channels: int = 1, width: int = 64, depth: int = 17, statistics: Statistics = "frozen"
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                Norm2d(width, statistics),
                nn.ReLU(),
            ]
        layers.append(nn.Conv2d(width, channels, 3, padding=1, bias=False))
        self.net = nn.Sequential(*layers)
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.orthogonal_(layer.weight) if layer.weight.device.type != "meta" else None
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        last = layers[-1]
        assert isinstance(last, nn.Conv2d)
        nn.init.zeros_(last.weight)
        self.description: Description = {
            "kind": "dncnn",
            "channels": channels,
            "width": width,
            "depth": depth,
            "statistics": statistics,
        }

    def forward(self, x: Tensor) -> Tensor:
        return x - self.net(x)  # type: ignore[no-any-return]


class FastDenoiser(nn.Module):
    """A small residual denoiser, on request on the pixel-unshuffled image at 1/factor^2 the cost.

    It must carry the noise to take it away, so `width` should exceed `channels * factor^2` well: on Pong with
    sigma 0.1, 48 channels at factor 4 leave all of the noise, 16 channels at full resolution 6 % of it.
    """

    def __init__(self, channels: int = 1, width: int = 16, depth: int = 4, factor: int = 1) -> None:
        super().__init__()
        inner = channels * factor**2
        sizes = [inner, *([width] * (depth - 1)), inner]
        layers: list[nn.Module] = [nn.PixelUnshuffle(factor)] if factor > 1 else []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
        layers[-1] = nn.PixelShuffle(factor) if factor > 1 else nn.Identity()
        self.net = nn.Sequential(*layers)
        last = layers[-2]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.description: Description = {
            "kind": "fast-denoiser",
            "channels": channels,
            "width": width,
            "depth": depth,
            "factor": factor,
        }

    def forward(self, x: Tensor) -> Tensor:
        return x - self.net(x)  # type: ignore[no-any-return]


class MLPDenoiser(nn.Module):
    """The denoiser of a vector observation: residual, starts as the identity."""

    def __init__(self, observations: int, hidden: Sequence[int] = (128, 128)) -> None:
        super().__init__()
        self.net = MLP(observations, observations, hidden, "relu")
        last = self.net.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.net(x)  # type: ignore[no-any-return]

    @property
    def description(self) -> Description:
        observations, *hidden, _ = self.net.sizes
        return {"kind": "mlp-denoiser", "observations": observations, "hidden": hidden}


class DenoisedQ(nn.Module):
    """S-DQN's network, Q(D(s)): a denoiser in front of a pretrained Q-network."""

    def __init__(self, denoiser: nn.Module, q: nn.Module) -> None:
        super().__init__()
        self.denoiser, self.q = denoiser, q

    def forward(self, x: Tensor) -> Tensor:
        return self.q(self.denoiser(x))  # type: ignore[no-any-return]

    @property
    def description(self) -> Description:
        return {"kind": "denoised-q", "denoiser": describe(self.denoiser), "q": describe(self.q)}


class Bounded(nn.Module):
    """A policy whose actions stay in a box: `clip` cuts them off, `tanh` squashes and stretches them.

    Both are monotone in each coordinate, so the median of bounded actions is the bounded median.
    """

    def __init__(
        self, body: nn.Module, how: Literal["clip", "tanh"], low: Sequence[float], high: Sequence[float]
    ) -> None:
        super().__init__()
        if how not in ("clip", "tanh"):
            raise unknown("action bound", how, ("clip", "tanh"))
        if len(low) != len(high) or not all(a < b for a, b in zip(low, high, strict=True)):
            raise UserError(f"the action box from {list(low)} to {list(high)} is none")
        self.body, self.how = body, how
        self.low, self.high = tuple(map(float, low)), tuple(map(float, high))

    def forward(self, x: Tensor) -> Tensor:
        raw: Tensor = self.body(x)
        low, high = raw.new_tensor(self.low), raw.new_tensor(self.high)
        if self.how == "clip":
            return torch.minimum(torch.maximum(raw, low), high)
        return low + (fast_tanh(raw) + 1.0) * (0.5 * (high - low))

    @property
    def description(self) -> Description:
        return {
            "kind": "bounded",
            "body": describe(self.body),
            "how": self.how,
            "low": list(self.low),
            "high": list(self.high),
        }


def unclipped(network: nn.Module) -> nn.Module:
    """The network before its actions are cut off at the box; networks without a box as they are."""
    return network.body if isinstance(network, Bounded) and network.how == "clip" else network


class Chain(nn.Module):
    """Plain layers one after another, from a list of names and sizes: what a foreign module is brought as."""

    def __init__(self, layers: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.specs = [dict(layer) for layer in layers]
        self.layers = nn.Sequential(*(_layer(spec) for spec in self.specs))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]

    @property
    def description(self) -> Description:
        return {"kind": "chain", "layers": self.specs}


LAYERS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "linear": (nn.Linear, ("in_features", "out_features", "bias")),
    "conv2d": (
        nn.Conv2d,
        ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"),
    ),
    "batch-norm-1d": (nn.BatchNorm1d, ("num_features", "eps")),
    "batch-norm-2d": (nn.BatchNorm2d, ("num_features", "eps")),
    "layer-norm": (nn.LayerNorm, ("normalized_shape", "eps")),
    "relu": (nn.ReLU, ()),
    "leaky-relu": (nn.LeakyReLU, ("negative_slope",)),
    "elu": (nn.ELU, ("alpha",)),
    "gelu": (nn.GELU, ()),
    "silu": (nn.SiLU, ()),
    "tanh": (nn.Tanh, ()),
    "sigmoid": (nn.Sigmoid, ()),
    "softplus": (nn.Softplus, ()),
    "hardtanh": (nn.Hardtanh, ("min_val", "max_val")),
    "flatten": (nn.Flatten, ("start_dim", "end_dim")),
    "identity": (nn.Identity, ()),
}
"""The layers a `Chain` is made of, with the settings that are kept."""


def _layer(spec: Mapping[str, Any]) -> nn.Module:
    rest = dict(spec)
    name = str(rest.pop("layer", None))
    if name not in LAYERS:
        raise unknown("layer", name, LAYERS)
    kind, settings = LAYERS[name]
    odd = set(rest) - set(settings)
    if odd:
        raise unknown(f"setting of layer {name!r}", min(odd), settings)
    return kind(**rest)


def folded(layers: nn.Sequential) -> nn.Sequential:
    """The same function without its frozen normalisations: each is folded into the convolution before it."""
    merged: list[nn.Module] = []
    for layer in layers:
        if not isinstance(layer, Norm2d):
            merged.append(layer)
            continue
        if layer.statistics != "frozen" or not isinstance(merged[-1], nn.Conv2d):
            raise UserError(
                "only normalisations with frozen statistics that follow a convolution can be folded"
            )
        conv = merged[-1]
        scale = layer.weight / torch.sqrt(layer.running_var + layer.eps)
        twin = copy.deepcopy(conv)
        twin.bias = nn.Parameter(torch.zeros_like(layer.bias), requires_grad=False)
        offset = layer.bias - layer.running_mean * scale
        with torch.no_grad():
            twin.weight.copy_(conv.weight * scale[:, None, None, None])
            twin.bias.copy_(offset if conv.bias is None else conv.bias * scale + offset)
        merged[-1] = twin
    return nn.Sequential(*merged)


class FastVotes(nn.Module):
    """A DenoisedQ for voting on a CPU: the denoiser's layers in bfloat16, channels-last and folded.

    The residual x - net(x) and the Q-network stay in float32. It is a fixed function of one image like the
    network it wraps, close to it but not it: an agent made of it has a digest and certificates of its own.
    """

    def __init__(self, network: DenoisedQ) -> None:
        super().__init__()
        if not isinstance(network.denoiser, DnCNN | FastDenoiser):
            raise UserError(f"there are no fast votes for a {type(network.denoiser).__name__}")
        self.network = network
        self.quick: dict[torch.device, nn.Sequential] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.device not in self.quick:
            net = copy.deepcopy(self.network.denoiser.net)
            assert isinstance(net, nn.Sequential)
            cast = folded(net).to(torch.bfloat16).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.quick[x.device] = cast
        inputs = x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        return self.network.q(x - self.quick[x.device](inputs).float())  # type: ignore[no-any-return]

    @property
    def description(self) -> Description:
        return {"kind": "fast-votes", "network": describe(self.network)}


# ------------------------------------------------------------------------------------------- pools


class PoolLinear(nn.Module):
    """`pool` independent linear layers as one batched product: (P, B, in) -> (P, B, out)."""

    def __init__(self, pool: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(pool, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(pool, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class PoolMLP(nn.Module):
    """`pool` independent MLPs of one shape; `member(i)` is the i-th as an ordinary MLP."""

    def __init__(
        self,
        pool: int,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        self.sizes = [inputs, *hidden, outputs]
        self.pool, self.activation = pool, activation
        self.layers = nn.ModuleList(
            PoolLinear(pool, a, b) for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.activation]
        for layer in self.layers[:-1]:
            x = act(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]

    def member(self, i: int) -> MLP:
        inputs, *hidden, outputs = self.sizes
        mlp = MLP(inputs, outputs, hidden, self.activation)
        with torch.no_grad():
            for mine, theirs in zip(self.layers, mlp.layers, strict=True):
                assert isinstance(mine, PoolLinear)
                assert isinstance(theirs, nn.Linear)
                theirs.weight.copy_(mine.weight[i].T)
                theirs.bias.copy_(mine.bias[i, 0])
        return mlp

    def set_member(self, i: int, mlp: MLP) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.layers, mlp.layers, strict=True):
                assert isinstance(mine, PoolLinear)
                assert isinstance(theirs, nn.Linear)
                mine.weight[i] = theirs.weight.T
                mine.bias[i, 0] = theirs.bias


class PoolGaussianPolicy(nn.Module):
    """`pool` independent Gaussian policies; forward gives the means (P, B, A)."""

    def __init__(
        self,
        pool: int,
        observations: int,
        actions: int,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        self.mean = PoolMLP(pool, observations, actions, hidden, activation)
        self.log_std = nn.Parameter(torch.zeros(pool, 1, actions))

    def forward(self, x: Tensor) -> Tensor:
        return self.mean(x)  # type: ignore[no-any-return]

    def member(self, i: int) -> GaussianPolicy:
        observations, *hidden, actions = self.mean.sizes
        policy = GaussianPolicy(observations, actions, hidden, self.mean.activation)
        policy.mean = self.mean.member(i)
        with torch.no_grad():
            policy.log_std.copy_(self.log_std[i, 0])
        return policy

    def set_member(self, i: int, policy: GaussianPolicy) -> None:
        self.mean.set_member(i, policy.mean)
        with torch.no_grad():
            self.log_std[i, 0] = policy.log_std


def orthogonal(
    mlp: MLP, generator: torch.Generator, gains: Sequence[float] | None = None, head: float = 1.0
) -> None:
    """Orthogonal weights (hidden gain sqrt 2, the last layer `head`), zero biases."""
    count = len(mlp.layers)
    chosen = list(gains) if gains is not None else [math.sqrt(2.0)] * (count - 1) + [head]
    with torch.no_grad():
        for layer, gain in zip(mlp.layers, chosen, strict=True):
            assert isinstance(layer, nn.Linear)
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            layer.bias.zero_()


# ----------------------------------------------------------------------------- descriptions and checks


def _denoised(denoiser: Mapping[str, Any], q: Mapping[str, Any]) -> DenoisedQ:
    return DenoisedQ(build(denoiser), build(q))


def _bounded(body: Mapping[str, Any], **rest: Any) -> Bounded:
    return Bounded(build(body), **rest)


def _fast_votes(network: Mapping[str, Any]) -> FastVotes:
    inner = build(network)
    if not isinstance(inner, DenoisedQ):
        raise UserError("fast votes wrap a denoised Q-network")
    return FastVotes(inner)


KINDS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "gaussian-policy": GaussianPolicy,
    "q-mlp": DuelingMLP,
    "q-nature": NatureQ,
    "q-small": SmallQ,
    "dncnn": DnCNN,
    "fast-denoiser": FastDenoiser,
    "mlp-denoiser": MLPDenoiser,
    "denoised-q": _denoised,
    "fast-votes": _fast_votes,
    "identity": nn.Identity,
    "chain": Chain,
    "bounded": _bounded,
}


def register(kind: str, builder: Callable[..., nn.Module]) -> None:
    """Let agent files name a network of your own; `builder(**description)` must give the module."""
    KINDS[kind] = builder


def build(description: Mapping[str, Any]) -> nn.Module:
    """The network a description names; unknown kinds and wrong arguments are refused."""
    rest = dict(description)
    kind = rest.pop("kind", None)
    if kind not in KINDS:
        raise unknown("network kind", str(kind), KINDS)
    try:
        return KINDS[kind](**rest)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise UserError(f"the network description of kind {kind!r} does not fit: {error}") from error


def describe(network: nn.Module) -> Description:
    """The description from which `build` makes a network of the same shape."""
    if isinstance(network, nn.Identity):
        return {"kind": "identity"}
    description = getattr(network, "description", None)
    if not isinstance(description, dict):
        raise UserError(
            f"{type(network).__name__} has no description; give it a `description` dict and "
            "`smoothrl.networks.register` its kind"
        )
    return description


_BATCH_LAYERS = (nn.modules.batchnorm._BatchNorm,)
_RANDOM_LAYERS = (nn.modules.dropout._DropoutNd,)


def batch_dependent(network: nn.Module) -> list[str]:
    """Names of the layers whose output for one row depends on the other rows, or on a hidden draw."""
    found = []
    for name, module in network.named_modules():
        live_norm = isinstance(module, _BATCH_LAYERS) and (module.training or not module.track_running_stats)
        own_norm = isinstance(module, Norm2d) and module.mixes_batch
        dropout = isinstance(module, _RANDOM_LAYERS) and module.training
        if live_norm or own_norm or dropout:
            found.append(name or type(module).__name__)
    return found


def multiply_adds(network: nn.Module, example: Tensor) -> int:
    """Multiply-adds of one forward of `example`, counted on the linear and convolution layers."""
    total = 0

    def count(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d):
            per = module.in_channels // module.groups * module.kernel_size[0] * module.kernel_size[1]
            total += output.numel() * per
        elif isinstance(module, nn.Linear):
            total += output.numel() * module.in_features

    handles = [m.register_forward_hook(count) for m in network.modules()]
    try:
        with torch.no_grad():
            network(example)
    finally:
        for handle in handles:
            handle.remove()
    return total


def frozen(network: nn.Module) -> nn.Module:
    """The network in evaluation mode, its parameters no longer collecting gradients."""
    network.eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network


def parameter_count(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for m in modules for p in m.parameters())
