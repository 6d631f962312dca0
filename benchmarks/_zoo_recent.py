"""Small classifiers of the last years as people write them: sequence models, mixtures, tables, sets and graphs.

As in `_zoo_written`, a forward pass takes `m`, the network, and its inputs; the parts stand in `recent`.
The last group has habits that cannot be measured, or not as they are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from _zoo_models import K, Made, Maker, images
from _zoo_plain import Calls, mlp, of, rows
from _zoo_written import mlp_of, weight
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

WORDS = torch.tensor([[3, 5, 7, 2, 9, 4], [8, 1, 6, 2, 0, 0], [2, 2, 3, 4, 5, 0], [11, 7, 0, 0, 0, 0]])


# Decoders and their attention. Shapes are (rows, heads, steps, features), or (rows, steps, features) without heads.


def heads(x: Tensor, number: int) -> Tensor:
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def rotated(x: Tensor) -> Tensor:
    """Rotary positions by the half that is turned (Su et al. 2021)."""
    steps, width = x.shape[-2:]
    angle = torch.arange(steps)[:, None] * 10.0 ** -torch.arange(width // 2).repeat(2)
    turned = torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1)
    return x * angle.cos() + turned * angle.sin()


def causal(steps: int) -> Tensor:
    return torch.full((steps, steps), -torch.inf).triu(1)


def llama(m: Any, x: Tensor) -> Tensor:
    """Grouped queries, rotary positions, RMS norm and a gated unit; the last word that is no filling is read."""
    h = m.table(x)
    for block in m.blocks:
        n = block["before"](h)
        q, k, v = heads(block["q"](n), 4), heads(block["k"](n), 2), heads(block["v"](n), 2)
        mixed = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True, enable_gqa=True)
        h = h + block["out"](joined(mixed))
        n = block["after"](h)
        h = h + block["down"](F.silu(block["gate"](n)) * block["up"](n))
    return m.head(m.norm(h)[torch.arange(len(x)), (x > 0).sum(1) - 1])


def llama_block() -> nn.ModuleDict:
    linear = {"q": (8, 8), "k": (8, 4), "v": (8, 4), "out": (8, 8), "gate": (8, 6), "up": (8, 6), "down": (6, 8)}
    parts = {name: nn.Linear(*shape, bias=False) for name, shape in linear.items()}
    return nn.ModuleDict({**parts, "before": nn.RMSNorm(8), "after": nn.RMSNorm(8)})


def capped(m: Any, x: Tensor) -> Tensor:
    """Scores and logits that a tanh caps (Gemma 2), a slope of distance (ALiBi), and normed queries and keys."""
    q, k, v = (heads(t, 2) for t in m.qkv(x).chunk(3, -1))
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * m.scale.exp()
    place = torch.arange(x.shape[1])
    slopes = torch.tensor([0.5, 0.25])[:, None, None] * (place - place[:, None]).abs().neg()  # (heads, steps, steps)
    weights = (5 * (scores / 5).tanh() + slopes + causal(x.shape[1])).softmax(-1)
    return 3 * (m.head(joined(weights @ v)[:, -1]) / 3).tanh()


def without_softmax(m: Any, x: Tensor) -> Tensor:
    """Attention by squared ReLU over the steps, then by sigmoids (Wortsman et al. 2023, Ramapuram et al. 2024)."""
    for norm, layer in zip(m.norms, m.layers):
        q, k, v = (heads(t, 2) for t in layer(norm(x)).chunk(3, -1))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / 2
        weights = scores.relu().square() / x.shape[1] if layer is m.layers[0] else (scores - 1).sigmoid()
        x = x + joined(torch.einsum("bhij,bhjd->bhid", weights, v))
    return m.head(x.mean(1))


def differential(m: Any, x: Tensor) -> Tensor:
    """The difference of two softmaxes (Ye et al. 2024)."""
    q, k = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in m.qk(x).chunk(2, -1))
    first, second = (rotated(q) @ rotated(k).mT / 2).softmax(-1).unbind(1)
    share = (m.a * m.b).sum().exp() - (m.c * m.d).sum().exp() + 0.2
    return m.head(m.norm((first - share * second) @ m.v(x)).mean(1) * 0.8)


def latent_keys(m: Any, x: Tensor) -> Tensor:
    """Keys and values of few numbers, with one rotary key for all heads (DeepSeek-V2)."""
    few, turned = m.down(x).split([3, 2], -1)
    k, v = heads(m.up(m.norm(few)), 2).chunk(2, -1)
    q, q_turned = heads(m.q(x), 2).split([4, 2], -1)
    turned = rotated(turned[:, None]).expand(-1, 2, -1, -1)
    mixed = F.scaled_dot_product_attention(torch.cat([q, rotated(q_turned)], -1), torch.cat([k, turned], -1), v)
    return m.head(joined(mixed)[:, -1])


def sinks(m: Any, x: Tensor) -> Tensor:
    """A window, and for each head a logit that no step receives (gpt-oss)."""
    q, k, v = (heads(t, 2) for t in m.qkv(x).chunk(3, -1))
    scores = q @ k.mT / 2 + causal(6) + causal(6).flip(0, 1).roll(2, 1).tril(-3)
    sink = m.sink[None, :, None, None].expand(len(x), -1, 6, 1)
    return m.head(joined(torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v)[:, -1])


def unit_norms(m: Any, x: Tensor) -> Tensor:
    """All on a sphere, steps between points of it, matrices normed as they are used (Loshchilov et al. 2024)."""
    h = F.normalize(m.table(x).mean(1), dim=-1)
    for first, last, rate in zip(m.first, m.last, m.rates):
        moved = F.normalize(F.silu(h @ F.normalize(first, dim=0)) @ F.normalize(last, dim=1), dim=-1)
        h = F.normalize(h + rate.abs() * (moved - h), dim=-1)
    return m.scale * (h @ F.normalize(m.out, dim=0))


def streams(m: Any, x: Tensor) -> Tensor:
    """Several residual streams, mixed by matrices that Sinkhorn's steps make doubly stochastic (hyper-connections)."""
    h = x[:, None].expand(-1, 3, -1)  # (rows, streams, features)
    for mix, read, write, layer in zip(m.mixes, m.reads, m.writes, m.layers):
        log = mix
        for _ in range(5):
            log = log - log.logsumexp(0, keepdim=True)
            log = log - log.logsumexp(1, keepdim=True)
        out = layer(torch.einsum("s,bsd->bd", read.softmax(0), h))
        h = torch.einsum("st,btd->bsd", log.exp(), h) + write[:, None] * out[:, None]
    return m.head(h.sum(1))


def looped(m: Any, x: Tensor) -> Tensor:
    """One block for all depths, each step halting by a share of its own (Dehghani et al. 2019, Graves 2016)."""
    left, out = x.new_ones(*x.shape[:2], 1), torch.zeros_like(x)
    for step in range(4):
        x = m.block(x + m.steps[step])
        stop = m.halt(x).sigmoid() if step < 3 else torch.ones_like(left)
        out, left = out + left * stop * x, left * (1 - stop)
    return m.head(out.mean(1))


def registers(m: Any, x: Tensor) -> Tensor:
    """A vision transformer with registers, scaled branches and resized positions (Darcet et al. 2024)."""
    patches = F.unfold(x, 4, stride=4).mT  # (rows, patches, pixels)
    place = F.interpolate(m.place, size=2, mode="bicubic", antialias=True).flatten(2).mT
    h = torch.cat([m.extra.expand(len(x), -1, -1), m.patch(patches) + place], 1)
    n = m.norm(h)
    h = h + m.scale * m.attention(n, n, n, need_weights=False)[0]
    return m.head(torch.cat([h[:, 0], h[:, m.extra.shape[1] :].mean(1)], 1))


def padded(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """PyTorch's own encoder with a mask of filling, which takes nested tensors where it is fast."""
    h = m.encoder(m.table(x), src_key_padding_mask=mask == 0)
    return m.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def whole_transformer(m: Any, x: Tensor) -> Tensor:
    """`nn.Transformer` from a sequence to itself, with a mask of the future."""
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return m.head(m.net(x, x, tgt_mask=mask, tgt_is_causal=True)[:, -1])


def pooled_by_memory(m: Any, x: Tensor) -> Tensor:
    """Stored patterns that a state falls towards in three steps (Ramsauer et al. 2021)."""
    state = m.query(x)
    for _ in range(3):
        state = (m.beta.exp() * m.norm(state) @ m.stored.T).softmax(-1) @ m.stored
    return m.head(state)


# Recurrences that run side by side.


def duality(m: Any, x: Tensor) -> Tensor:
    """Mamba-2: a state space as masked attention, chunk by chunk (Dao and Gu 2024)."""
    z, inner, b, c, dt = m.into(x).split([4, 4, 3, 3, 2], -1)
    inner = F.silu(m.conv(inner.mT)[..., : x.shape[1]].mT)
    dt = F.softplus(dt + m.bias)
    rate = (-m.log_a.exp() * dt).mT  # (rows, heads, steps)
    values = inner.unflatten(-1, (2, 2)) * dt[..., None]  # (rows, steps, heads, features)

    def sums(a: Tensor) -> Tensor:  # of all segments, (..., steps, steps)
        total = a.cumsum(-1)
        below = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool).tril()
        return (total[..., :, None] - total[..., None, :]).masked_fill(~below, -torch.inf)

    out, state = [], x.new_zeros(len(x), 2, 2, 3)
    for r, v, key, query in zip(rate.split(3, -1), values.split(3, 1), b.split(3, 1), c.split(3, 1)):
        within = torch.einsum("btn,bsn,bhts,bshp->bthp", query, key, sums(r).exp(), v)
        past = torch.einsum("btn,bht,bhpn->bthp", query, r.cumsum(-1).exp(), state)
        out.append(within + past)
        kept = (r.sum(-1, keepdim=True) - r.cumsum(-1)).exp()  # of each step, at the end of the chunk
        state = state * r.sum(-1).exp()[..., None, None] + torch.einsum("bsn,bhs,bshp->bhpn", key, kept, v)
    y = torch.cat(out, 1) + m.skip[:, None] * inner.unflatten(-1, (2, 2))
    return m.head(m.norm(y.flatten(2) * F.silu(z))[:, -1])


def rwkv(m: Any, x: Tensor) -> Tensor:
    """Time mixing with a running maximum, and channel mixing (Peng et al. 2023)."""
    before = F.pad(x, (0, 0, 1, -1))
    k, v, r = (layer(x * mix + before * (1 - mix)) for layer, mix in zip(m.kvr, m.mix))
    top, total, norm, out = x.new_full((len(x), 4), -1e30), torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        new = torch.maximum(top, m.first + k[:, t])
        a, b = (top - new).exp(), (m.first + k[:, t] - new).exp()
        out.append((a * total + b * v[:, t]) / (a * norm + b))
        new = torch.maximum(top - m.decay.exp(), k[:, t])
        a, b = (top - m.decay.exp() - new).exp(), (k[:, t] - new).exp()
        total, norm, top = a * total + b * v[:, t], a * norm + b, new
    x = x + r.sigmoid() * torch.stack(out, 1)
    return m.head((m.gate(x).sigmoid() * m.down(m.up(x).relu().square()))[:, -1])


def retention(m: Any, x: Tensor) -> Tensor:
    """A decay for each head in place of a softmax, normed by group (Sun et al. 2023)."""
    q, k, v = (heads(t, 2) for t in m.qkv(x).chunk(3, -1))
    place = torch.arange(x.shape[1])
    decay = m.decay[:, None, None] ** (place[:, None] - place).clamp(min=0) * (place[:, None] >= place)
    mixed = joined((q @ k.mT / 2 * decay) @ v)
    return m.head((F.silu(m.gate(x)) * m.norm(mixed.flatten(0, 1)).view_as(mixed))[:, -1])


def linear_attention(m: Any, x: Tensor) -> Tensor:
    """Positive features and running sums (Katharopoulos et al. 2020), for features by random projections too."""
    for layer, features in zip(
        m.layers, (lambda t: F.elu(t) + 1, lambda t: (t @ m.random - t.square().sum(-1, True) / 2).exp())
    ):
        q, k, v = layer(x).chunk(3, -1)
        q, k = features(q), features(k)
        state = torch.einsum("bti,btj->btij", k, v).cumsum(1)
        x = (
            x
            + torch.einsum("bti,btij->btj", q, state) / (torch.einsum("bti,bti->bt", q, k.cumsum(1)) + 1e-6)[..., None]
        )
    return m.head(x[:, -1])


def delta_rule(m: Any, x: Tensor) -> Tensor:
    """A memory that is corrected where it errs, with a gate that forgets (Yang et al. 2024)."""
    q, k, v = m.qkv(x).chunk(3, -1)
    q, k, rate, keep = F.normalize(q, dim=-1), F.normalize(k, dim=-1), m.rate(x).sigmoid(), m.keep(x).sigmoid()
    memory, out = x.new_zeros(len(x), 4, 4), []  # (rows, keys, values)
    for t in range(x.shape[1]):
        memory = memory * keep[:, t, :, None]
        error = v[:, t] - torch.einsum("bi,bij->bj", k[:, t], memory)
        memory = memory + torch.einsum("bi,bj->bij", k[:, t], rate[:, t] * error)
        out.append(torch.einsum("bi,bij->bj", q[:, t], memory))
    return m.head(m.norm(torch.stack(out, 1))[:, -1])


def matrix_memory(m: Any, x: Tensor) -> Tensor:
    """xLSTM: exponential gates that a running maximum holds (Beck et al. 2024)."""
    q, k, v = m.qkv(x).chunk(3, -1)
    into, keep = m.gates(x).unbind(-1)
    memory, norm, top = x.new_zeros(len(x), 4, 4), x.new_zeros(len(x), 4), x.new_zeros(len(x))
    for t in range(x.shape[1]):
        new = torch.maximum(F.logsigmoid(keep[:, t]) + top, into[:, t])
        f, i = (F.logsigmoid(keep[:, t]) + top - new).exp(), (into[:, t] - new).exp()
        memory = f[:, None, None] * memory + i[:, None, None] * torch.einsum("bi,bj->bij", v[:, t], k[:, t] / 2)
        norm, top = f[:, None] * norm + i[:, None] * k[:, t] / 2, new
    size = torch.maximum((norm * q[:, -1]).sum(-1).abs(), (-top).exp())
    return m.head(torch.einsum("bij,bj->bi", memory, q[:, -1]) / size[:, None])


def least_gru(m: Any, x: Tensor) -> Tensor:
    """minGRU in one go, by cumulative sums of logarithms (Feng et al. 2024)."""
    gate, hidden = m.into(x).chunk(2, -1)
    positive = torch.where(hidden >= 0, (hidden.relu() + 0.5).log(), -F.softplus(-hidden))
    kept = F.pad((-F.softplus(gate)).cumsum(1), (0, 0, 1, 0))
    values = torch.cat([torch.zeros_like(x[:, :1]), -F.softplus(-gate) + positive], 1)
    return m.head((kept + (values - kept).logcumsumexp(1)).exp()[:, -1])


def diagonal_states(m: Any, x: Tensor) -> Tensor:
    """S4D: complex diagonal states as a long convolution by FFT (Gu et al. 2022)."""
    steps, dt = x.shape[1], m.log_dt.exp()
    a = torch.complex(-m.log_a.exp(), m.imaginary) * dt[:, None]
    c = torch.view_as_complex(m.c) * (a.exp() - 1) / a * dt[:, None]
    kernel = 2 * torch.einsum("hn,hnl->hl", c, (a[..., None] * torch.arange(steps)).exp()).real
    spectrum = torch.fft.rfft(kernel, n=2 * steps) * torch.fft.rfft(x.mT, n=2 * steps)
    return m.head(F.gelu(torch.fft.irfft(spectrum, n=2 * steps)[..., -1] + x[:, -1] * m.skip))


def implicit_filters(m: Any, x: Tensor) -> Tensor:
    """Hyena: gates and long filters that a network of sines makes of time (Poli et al. 2023)."""
    steps = x.shape[1]
    time = torch.linspace(0, 1, steps)[:, None]
    filters = (m.last(torch.sin(3 * m.first(time.to(x.dtype)))) * (-time * m.decay.exp()).exp()).T
    gate, value = m.into(x).mT.chunk(2, 1)
    spectrum = torch.fft.rfft(filters, n=2 * steps) * torch.fft.rfft(value, n=2 * steps)
    return m.head((torch.fft.irfft(spectrum, n=2 * steps)[..., :steps] * gate)[..., -1])


def dilated(m: Any, x: Tensor) -> Tensor:
    """A temporal network: causal, dilated, normed weights and residuals (Bai et al. 2018)."""
    for power, (conv, skip) in enumerate(zip(m.convs, m.skips)):
        x = (conv(F.pad(x, (2 * 2**power, 0))).relu() + skip(x)).relu()
    return m.head(x[..., -1])


def convolved_lstm(m: Any, x: Tensor) -> Tensor:
    """ConvLSTM over frames (Shi et al. 2015)."""
    h = c = x.new_zeros(len(x), 3, 4, 4)
    for frame in x.unbind(1):
        i, f, o, g = m.gates(torch.cat([frame, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return m.head(h.mean((2, 3)))


# Mixtures of experts, and weights that come from elsewhere.


def soft_mixture(m: Any, x: Tensor) -> Tensor:
    """Slots that take a share of every step and give it back (Puigcerver et al. 2024)."""
    scores = torch.einsum("btd,esd->btes", F.normalize(x, dim=-1), m.scale * F.normalize(m.slots, dim=-1))
    taken = torch.einsum("btes,btd->besd", scores.softmax(1), x)
    made = torch.stack([expert(part) for expert, part in zip(m.experts, taken.unbind(1))], 1)
    return m.head(torch.einsum("btes,besd->btd", scores.flatten(2).softmax(-1).view_as(scores), made).mean(1))


def balanced(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Routed by sigmoids plus a buffer that balances, with an expert for all (DeepSeek-V3)."""
    score = m.gate(x).sigmoid()
    chosen = (score + m.bias).topk(2, -1).indices
    share = score.gather(1, chosen)
    share = 1.5 * share / share.sum(-1, keepdim=True)
    mask = F.one_hot(chosen, 4).to(x.dtype)
    out = torch.einsum("ndf,efg->neg", F.silu(torch.einsum("nd,edf->nef", x, m.first)), m.last)
    mixed = torch.einsum("nk,nke,neg->ng", share, mask, out)
    loads = mask.sum((0, 1))
    return m.head(mixed + m.shared(x)), (loads * score.mean(0)).sum()


def mixture_of_depths(m: Any, x: Tensor) -> Tensor:
    """Half of the steps go through a block, the rest past it (Raposo et al. 2024)."""
    for gate, block in zip(m.gates, m.blocks):
        score, chosen = gate(x).squeeze(-1).topk(3, 1, sorted=False)
        place = chosen[..., None].expand(-1, -1, x.shape[-1])
        x = x.scatter_add(1, place, score.sigmoid()[..., None] * block(x.gather(1, place)))
    return m.head(x.mean(1))


def updated(m: Any, x: Tensor) -> Tensor:
    """LoRA and DoRA by hand: a frozen matrix, a product of thin ones, and the length of each column."""
    x = F.linear(x, m.frozen) + F.linear(F.linear(x, m.a), m.b) * (16 / 4)
    moved = m.frozen + m.d @ m.c
    return m.head(F.linear(x.tanh(), m.length * moved / moved.norm(dim=1, keepdim=True)))


def weights_made(m: Any, x: Tensor, condition: Tensor) -> Tensor:
    """A network that writes another's weights for each row (Ha et al. 2017)."""
    first, bias, last = m.writer(condition).split([20, 4, 12], -1)
    h = (torch.bmm(first.view(-1, 4, 5), x[..., None]).squeeze(-1) + bias).tanh()
    return torch.einsum("bkh,bh->bk", last.view(-1, 3, 4), h)


def modulated(m: Any, x: Tensor, condition: Tensor) -> Tensor:
    """Scales and shifts of channels by a second input (Perez et al. 2018), blurred before strides (Zhang 2019)."""
    scale, shift = m.film(m.table(condition)).chunk(2, -1)
    h = m.norm(m.conv(x)) * (1 + scale[..., None, None]) + shift[..., None, None]
    blurred = F.conv2d(F.pad(h.relu(), (1, 1, 1, 1), mode="reflect"), m.blur.expand(4, 1, 3, 3), stride=2, groups=4)
    return m.head(blurred.flatten(1))


def one_step_ahead(m: Any, x: Tensor) -> Tensor:
    """Weights after a step of gradient descent on examples that the network holds (MAML), called functionally."""
    with torch.enable_grad():
        weights = dict(m.net.named_parameters())
        loss = F.cross_entropy(functional_call(m.net, weights, (m.examples,)), m.answers)
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    return functional_call(m.net, {n: w - m.rate * g for (n, w), g in zip(weights.items(), slopes)}, (x,))


def stacked_members(m: Any, x: Tensor) -> Tensor:
    """An ensemble by stacked states, vmap and a functional call."""
    parameters, buffers = stack_module_state(list(m.members))
    out = torch.vmap(lambda p, b: functional_call(m.members[0], (p, b), (x,)))(parameters, buffers)
    return out.softmax(-1).mean(0).log()


def stacked_by_hand(m: Any, x: Tensor) -> Tensor:
    """The same, stacked in the forward pass: gradients reach the members, as `stack_module_state` cuts them off."""
    members = [dict(member.named_parameters()) for member in m.members.children()]
    stacked = {name: torch.stack([member[name] for member in members]) for name in members[0]}
    return torch.vmap(lambda p: functional_call(m.members[0], p, (x,)))(stacked).mean(0)


def cached_parametrizations(m: Any, x: Tensor) -> Tensor:
    """A layer that is symmetric and positive, used twice in one pass that remembers it."""
    with parametrize.cached():
        return m.head(m.layer(m.layer(x).tanh()))


def parametrized() -> Made:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Calls(lambda m, w: w.triu() + w.triu(1).mT))
    parametrize.register_parametrization(layer, "weight", Calls(lambda m, w: F.softplus(w + m.shift), shift=weight(5)))
    parametrizations.orthogonal(head := nn.Linear(5, K), orthogonal_map="cayley")
    return of(cached_parametrizations, layer=layer, head=head)


def pruned() -> Made:
    """Weights behind masks, as `torch.nn.utils.prune` leaves them, after a pass."""
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.ln_structured(model[2], "weight", 0.4, n=2, dim=1)
    model(inputs := rows())
    return model, inputs


def equilibrium(m: Any, x: Tensor) -> Tensor:
    """A fixed point by iterations that all count (Bai et al. 2019)."""
    z = x.new_zeros(len(x), 6)
    for _ in range(20):
        z = m.norm(z + m.last((m.inner(z) + m.into(x)).relu()) / 2).tanh() / 2 + z / 4
    return m.head(z)


def remembers(m: Any, x: Tensor) -> Tensor:
    """Keeps its attention, with its graph, for whoever looks at it."""
    m.seen = (m.query(x)[:, None] @ m.keys.T).softmax(-1)
    return m.head((m.seen @ m.values).squeeze(1))


def remembering() -> Made:
    model, inputs = of(remembers, query=nn.Linear(5, 4), keys=weight(6, 4), values=weight(6, 4), head=nn.Linear(4, K))
    model(inputs)
    return model, inputs


# Tables.


def splines(m: Any, x: Tensor) -> Tensor:
    """KAN: cubic B-splines on each edge by Cox and de Boor, beside a SiLU (Liu et al. 2024)."""
    grid = m.grid
    for base, coefficients in zip(m.bases, m.splines):
        t = x.tanh()[..., None]
        basis = ((t >= grid[:-1]) & (t < grid[1:])).to(x.dtype)  # (rows, features, pieces)
        for k in range(1, 4):
            left = (t - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1]) * basis[..., :-1]
            basis = left + (grid[k + 1 :] - t) / (grid[k + 1 :] - grid[1:-k]) * basis[..., 1:]
        x = base(F.silu(x)) + torch.einsum("bfg,ofg->bo", basis, coefficients)
    return x


def feature_tokens(m: Any, x: Tensor, kinds: Tensor) -> Tensor:
    """FT-Transformer with periodic embeddings of numbers (Gorishniy et al. 2021, 2022)."""
    waves = 2 * math.pi * m.frequency * x[..., None]
    numbers = torch.einsum("bfi,fio->bfo", torch.cat([waves.cos(), waves.sin()], -1), m.number).relu()
    words = m.table(kinds + m.offset)
    h = m.block(torch.cat([m.start.expand(len(x), 1, -1), numbers, words], 1))
    return m.head(h[:, 0].relu())


def thin_ensemble(m: Any, x: Tensor) -> Tensor:
    """TabM: members that share matrices and have scales of their own (Gorishniy et al. 2025)."""
    h = x[:, None] * m.into  # (rows, members, features)
    for shared, r, s, bias in zip(m.shared, m.r, m.s, m.bias):
        h = (((h * r) @ shared) * s + bias).relu()
    return torch.einsum("bmh,mhk->bmk", h, m.last).log_softmax(-1).logsumexp(1)


def sparsemax(x: Tensor) -> Tensor:
    z = x.sort(-1, descending=True).values
    number = torch.arange(1, x.shape[-1] + 1)
    size = (1 + number * z > z.cumsum(-1)).sum(-1, keepdim=True)
    return (x - (z.cumsum(-1).gather(-1, size - 1) - 1) / size).relu()


class Sparsemax(torch.autograd.Function):
    """The same as libraries for tables have it, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(out := sparsemax(x))
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        support = ctx.saved_tensors[0] > 0
        mean = (g * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return torch.where(support, g - mean, torch.zeros_like(g))


def entmax(x: Tensor) -> Tensor:
    """Halfway between softmax and sparsemax (α = 1.5) by sorting (Peters et al. 2019)."""
    z = x.sort(-1, descending=True).values / 2
    number = torch.arange(1, x.shape[-1] + 1)
    mean, square = z.cumsum(-1) / number, z.square().cumsum(-1) / number
    inside = (1 - number * (square - mean.square())) / number
    threshold = mean - torch.where(inside > 0, inside, 0.0 * inside + 1e-12).sqrt()
    size = (threshold <= z).sum(-1, keepdim=True)
    return (x / 2 - threshold.gather(-1, size - 1)).relu().square()


def masked_steps(m: Any, x: Tensor) -> Tensor:
    """TabNet: features chosen by sparse masks, step by step (Arik and Pfister 2021)."""
    x, left, total = m.norm(x), torch.ones_like(x), x.new_zeros(len(x), 4)
    attention = m.split(x)[:, 4:]
    for choose, layer, sparse in zip(m.choose, m.layers, (Sparsemax.apply, entmax, sparsemax)):
        mask = sparse(choose(attention) * left)
        left = left * (1.3 - mask)
        decided, attention = F.glu(layer(x * mask)).split([4, 4], -1)
        total = total + decided.relu()
    return m.head(total)


def additive(m: Any, x: Tensor) -> Tensor:
    """A small network for each feature, with units of exponents (Agarwal et al. 2021)."""
    h = ((x[..., None] - m.shift) * m.log_scale.exp()).clamp(0, 1)  # (rows, features, units)
    return torch.einsum("bfu,fuk->bk", F.gelu(h), m.last) + m.bias


def trees(m: Any, x: Tensor) -> Tensor:
    """NODE: oblivious trees whose features and splits are soft (Popov et al. 2020)."""
    chosen = torch.einsum("bf,tdf->btd", x, entmax(m.features))
    right = ((chosen - m.splits) * (-m.log_sharp).exp() / 2 + 0.5).clamp(0, 1)
    leaves = x.new_ones(len(x), right.shape[1], 1)
    for bit in right.unbind(-1):
        leaves = torch.cat([leaves * bit[..., None], leaves * (1 - bit[..., None])], -1)
    return torch.einsum("btl,tlk->bk", leaves, m.leaves)


def mixture_density(m: Any, x: Tensor) -> Tensor:
    """A mixture of Gaussians for each class, by torch.distributions."""
    lower = m.lower.tril(-1) + torch.diag_embed(F.softplus(m.lower.diagonal(dim1=-2, dim2=-1)))
    classes = MultivariateNormal(m.means, scale_tril=lower, validate_args=False)
    mixture = MixtureSameFamily(Categorical(logits=m.shares), classes, validate_args=False)
    return mixture.log_prob(m.inner(x)[:, None]) + m.prior.log_softmax(0)


def prototypes(m: Any, x: Tensor) -> Tensor:
    """Distances from the means of examples in a metric that is learned (Snell et al. 2017)."""
    examples = m.inner(m.examples)
    means = torch.stack([examples[m.answers == k].mean(0) for k in range(K)])
    apart = m.inner(x)[:, None] - means
    return -torch.einsum("bki,ij,bkj->bk", apart, m.metric.T @ m.metric + 0.1 * torch.eye(4), apart)


def hyperbolic(m: Any, x: Tensor) -> Tensor:
    """Distances in the Poincaré ball (Ganea et al. 2018)."""
    h = m.inner(x)
    h = h.norm(dim=-1, keepdim=True).tanh() * F.normalize(h, dim=-1) * 0.9
    p = 0.9 * m.points.norm(dim=-1, keepdim=True).tanh() * F.normalize(m.points, dim=-1)
    apart = (h[:, None] - p).square().sum(-1)
    room = (1 - h.square().sum(-1))[:, None] * (1 - p.square().sum(-1))
    return -m.scale * (1 + 2 * apart / room).acosh()


def by_features_of_a_process(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """SNGP: spectral norms, random features, a precision matrix as a buffer (Liu et al. 2020)."""
    phi = (2 / 6) ** 0.5 * (m.norm(m.inner(x)) @ m.random + m.phase).cos()
    variance = (phi @ torch.linalg.inv(m.precision) * phi).sum(-1, keepdim=True)
    return m.head(phi) / (1 + math.pi / 8 * variance).sqrt(), variance


def ordered(m: Any, x: Tensor) -> Tensor:
    """Cumulative log-odds with thresholds in order, as logarithms of probabilities."""
    cuts = torch.cat([m.first, m.first + F.softplus(m.gaps).cumsum(0)])
    below = F.pad((cuts - m.score(x)).sigmoid(), (0, 1), value=1.0)
    return below.diff(dim=1, prepend=torch.zeros_like(below[:, :1])).log()


# Sets, graphs and pictures.


def latent_reader(m: Any, x: Tensor) -> Tensor:
    """Perceiver: few learned queries read all pixels, with Fourier features of places (Jaegle et al. 2021)."""
    place = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 4)] * 2, indexing="ij"), -1).flatten(0, 1)
    waves = math.pi * place[..., None] * torch.tensor([1.0, 2.0])
    seen = torch.cat(
        [x.flatten(2).mT, torch.cat([waves.sin(), waves.cos()], -1).flatten(1).to(x.dtype).expand(len(x), -1, -1)], -1
    )
    h = m.latents.expand(len(x), -1, -1)
    for _ in range(2):
        h = h + m.cross(m.norm(h), m.into(seen), m.into(seen))[0]
        h = h + m.inner(m.norm(h))
    return m.head(h.mean(1))


def induced(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Set transformer: inducing points, pooling by a query, elements that are filling (Lee et al. 2019)."""
    hidden = mask == 0

    def block(layer: Any, query: Tensor, keys: Tensor, ignore: Tensor | None = None) -> Tensor:
        h = query + layer(query, keys, keys, key_padding_mask=ignore)[0]
        return h + F.relu(m.inner(h))

    h = m.into(x)
    h = block(m.out, h, block(m.induce, m.points.expand(len(x), -1, -1), h, hidden))
    return m.head(block(m.pool, m.query.expand(len(x), -1, -1), h, hidden)[:, 0])


def transported(m: Any, x: Tensor) -> Tensor:
    """Attention by optimal transport: Sinkhorn's steps in logarithms (Sander et al. 2022)."""
    q, k, v = m.qkv(x).chunk(3, -1)
    log = q @ k.mT
    for _ in range(4):
        log = log.log_softmax(-1).log_softmax(-2)
    return m.head((log.log_softmax(-1).exp() @ v).mean(1))


def pooled_graph(m: Any, x: Tensor, adjacency: Tensor) -> Tensor:
    """Nodes joined into soft clusters (Ying et al. 2018), after dense convolutions normed by degree."""
    a = adjacency + torch.eye(6)
    scale = a.sum(-1).rsqrt()
    a = scale[:, :, None] * a * scale[:, None]
    share, h = (a @ m.assign(x)).softmax(-1), (a @ m.first(x)).relu()
    h, a = share.mT @ h, share.mT @ a @ share
    return m.head((a @ m.second(h)).relu().amax(1))


def graph_transformer(m: Any, x: Tensor, distance: Tensor) -> Tensor:
    """Attention over nodes with a bias for each distance and an embedding of each degree (Ying et al. 2021)."""
    h = x + m.degree((distance == 1).sum(-1))
    q, k, v = (heads(t, 2) for t in m.qkv(m.norm(h)).chunk(3, -1))
    bias = m.distance(distance).permute(0, 3, 1, 2)  # (rows, heads, nodes, nodes)
    return m.head((h + joined(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))).mean(1))


def equivariant(m: Any, x: Tensor) -> Tensor:
    """Messages by squared distances that also move the points (Satorras et al. 2021)."""
    h = m.start.expand(*x.shape[:2], -1)
    for edge, node, move in zip(m.edges, m.nodes, m.moves):
        apart = x[:, :, None] - x[:, None]
        pair = torch.cat(
            [h[:, :, None].expand(-1, -1, 5, -1), h[:, None].expand(-1, 5, -1, -1), apart.square().sum(-1, True)], -1
        )
        message = edge(pair) * (1 - torch.eye(5))[..., None]
        x = x + (apart * move(message)).mean(2)
        h = h + node(torch.cat([h, message.sum(2)], -1))
    return m.head(h.sum(1))


def capsules(m: Any, x: Tensor) -> Tensor:
    """Routing by agreement (Sabour et al. 2017); the log-odds of the length of each class's capsule."""

    def squashed(v: Tensor) -> Tensor:
        square = v.square().sum(-1, keepdim=True)
        return square / (1 + square) * v / (square + 1e-8).sqrt()

    votes = torch.einsum("nkio,bni->bnko", m.votes, squashed(m.conv(x).flatten(1).unflatten(1, (-1, 4))))
    scores = x.new_zeros(votes.shape[:3])
    for _ in range(3):
        out = squashed((scores.softmax(2)[..., None] * votes).sum(1))
        scores = scores + (votes * out[:, None]).sum(-1)
    return out.norm(dim=-1).logit(1e-6)


def sines(m: Any, x: Tensor) -> Tensor:
    """SIREN (Sitzmann et al. 2020)."""
    for layer in m.layers:
        x = torch.sin(6 * layer(x))
    return m.head(x)


def standardised(m: Any, x: Tensor) -> Tensor:
    """Weights standardised as they are used (Qiao et al. 2019), gates of channels and places (Woo et al. 2018)."""
    w = m.conv.weight
    variance, mean = torch.var_mean(w, (1, 2, 3), correction=0, keepdim=True)
    h = F.gelu(F.conv2d(x, (w - mean) * (variance * 27 + 1e-4).rsqrt() * m.gain, m.conv.bias)) * 1.7
    h = h * (m.squeeze(h.mean((2, 3))) + m.squeeze(h.amax((2, 3)))).sigmoid()[:, :, None, None]
    places = m.place(torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], 1)).sigmoid()
    return m.head((h * places).mean((2, 3)))


def involved(m: Any, x: Tensor) -> Tensor:
    """Kernels made at each place (Li et al. 2021), and a mean of powers that is learned (GeM)."""
    kernels = m.make(x).unflatten(1, (1, 9))  # (rows, 1, places of the kernel, height, width)
    patches = F.unfold(x, 3, padding=1).view(len(x), 3, 9, *x.shape[2:])
    h = F.softplus((kernels * patches).sum(2))
    return m.head(F.avg_pool2d(h.clamp(min=1e-6) ** m.power, h.shape[2:]).flatten(1) ** (1 / m.power))


def warped(m: Any, x: Tensor) -> Tensor:
    """A spatial transformer: the picture turned by a small network (Jaderberg et al. 2015), sampled by hand."""
    turn = m.locate(x.flatten(1)).unflatten(1, (2, 3)) / 4 + torch.eye(2, 3)
    grid = F.affine_grid(turn, [len(x), 3, 4, 4], align_corners=True)
    place = torch.linspace(-1, 1, 8)
    near = [(1 - (grid[..., i, None] - place).abs() * 3.5).relu() for i in (0, 1)]  # (rows, 4, 4, 8) for x and y
    return m.head(torch.einsum("bcij,bhwi,bhwj->bchw", x, near[1], near[0]).flatten(1).tanh())


@torch.compile(backend="aot_eager")
def fused(x: Tensor, scale: Tensor) -> Tensor:
    return F.silu(x) * scale * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@torch.jit.script
def gated(x: Tensor, scale: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.gelu(a) * b * scale


# Habits that make a gradient another than that of the outputs, outputs random, or rows depend on one another.


def one_step_at_the_end(m: Any, x: Tensor) -> Tensor:
    """A fixed point found without gradients, and one step with them."""
    z = torch.zeros_like(x)
    with torch.no_grad():
        for _ in range(20):
            z = m.inner(z) / 2 + x
    return m.head(m.inner(z) / 2 + x)


def length_held(m: Any, x: Tensor) -> Tensor:
    """DoRA with the norm taken for a constant, as its paper proposes to save memory."""
    moved = m.frozen + m.d @ m.c
    return m.head(F.linear(x, m.length * moved / moved.norm(dim=1, keepdim=True).detach()).tanh())


def fake_quantised(m: Any, x: Tensor) -> Tensor:
    """Weights rounded to 8 bits as they are used, for training that knows of it."""
    w = torch.fake_quantize_per_tensor_affine(m.first.weight, 0.02, 0, -128, 127)
    return m.head(F.linear(x, w, m.first.bias).tanh())


def learned_step(m: Any, x: Tensor) -> Tensor:
    """A step of rounding that is learned, with its gradient scaled (Esser et al. 2020)."""
    scale = (m.step - m.step * 0.1).detach() + m.step * 0.1
    w = (m.first.weight / scale).clamp(-8, 7)
    return m.head(F.linear(x, ((w.round() - w).detach() + w) * scale).tanh())


def ternary(m: Any, x: Tensor) -> Tensor:
    """Weights of -1, 0 and 1 times their mean size, straight through (BitNet b1.58)."""
    scale = m.first.weight.abs().mean().clamp(min=1e-5)
    w = (m.first.weight / scale).round().clamp(-1, 1) * scale
    return m.head(F.linear(x, m.first.weight + (w - m.first.weight).detach()).tanh())


def codebook(m: Any, x: Tensor) -> Tensor:
    """The nearest word of a codebook, straight through (VQ-VAE)."""
    z = m.first(x)
    word = m.words[(z[:, None] - m.words).square().sum(-1).argmin(1)]
    return m.head(z + (word - z).detach())


def sampled(m: Any, x: Tensor) -> Tensor:
    """Weights drawn at each call (Bayes by backpropagation)."""
    return m.head(F.linear(x, m.mean + F.softplus(m.spread) * torch.randn_like(m.mean)).tanh())


def chosen_with_noise(m: Any, x: Tensor) -> Tensor:
    """A hard choice by Gumbel noise, also in eval mode."""
    return F.gumbel_softmax(m.gate(x), hard=True) @ m.experts


def within_capacity(m: Any, x: Tensor) -> Tensor:
    """Each expert takes the two rows that score best (Zhou et al. 2022): a row's output depends on the others."""
    score, mixed = m.gate(x).softmax(-1), x.new_zeros(len(x), 4)
    for i, expert in enumerate(m.experts):
        share, row = score[:, i].topk(min(2, len(x)))
        mixed = mixed.index_add(0, row, share[:, None] * expert(x[row]))
    return m.head(mixed)


class Entmax(torch.autograd.Function):
    """Entmax with the backward pass of its library: a root of the outputs, of which many are 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(out := entmax(x))
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        root = ctx.saved_tensors[0].sqrt()
        q = (g * root).sum(-1, keepdim=True) / root.sum(-1, keepdim=True)
        return g * root - q * root


@torch.library.custom_op("zoo::squares", mutates_args=())
def squares(x: Tensor) -> Tensor:
    return x * x


@torch.library.custom_op("zoo::squares_backward", mutates_args=())
def squares_backward(g: Tensor, x: Tensor) -> Tensor:
    return 2 * g * x


squares.register_autograd(
    lambda ctx, g: squares_backward(g, ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def sampled_grid(m: Any, x: Tensor) -> Tensor:
    """A spatial transformer with PyTorch's own sampling, whose places depend on weights."""
    turn = m.locate(x.flatten(1)).unflatten(1, (2, 3)) / 4 + torch.eye(2, 3)
    grid = F.affine_grid(turn, [len(x), 3, 4, 4], align_corners=True)
    return m.head(F.grid_sample(x, grid, align_corners=True).flatten(1).tanh())


def recent() -> dict[str, Maker]:
    mask = (WORDS > 0).long()
    steps = lambda: torch.randn(4, 6, 4)  # noqa: E731

    def with_head(function: Any, width: int, inputs: Any = None, **parts: Any) -> Made:
        """A network whose last layer has so many inputs, on rows of features unless there are others."""
        return Calls(function, **parts, head=nn.Linear(width, K)), rows() if inputs is None else inputs

    def linear(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False)

    def several(number: int, make: Any, *shape: int) -> nn.ModuleList:
        return nn.ModuleList(make(*shape) for _ in range(number))

    def tensors(number: int, *shape: int, scale: float = 1.0) -> nn.ParameterList:
        return nn.ParameterList(weight(*shape, scale=scale) for _ in range(number))

    def encoder_layer(width: int, **options: Any) -> nn.TransformerEncoderLayer:
        return nn.TransformerEncoderLayer(width, 2, 6, batch_first=True, **options)

    def attention(width: int, **options: Any) -> nn.MultiheadAttention:
        return nn.MultiheadAttention(width, 2, batch_first=True, **options)

    def normed_conv(a: int, b: int, power: int) -> nn.Module:
        return parametrizations.weight_norm(nn.Conv1d(a, b, 3, dilation=2**power))

    def graphs() -> Tensor:
        upper = (torch.rand(4, 6, 6) < 0.5).triu(1).float()
        return upper + upper.mT

    return {
        "llama": lambda: (
            Calls(llama, table=nn.Embedding(12, 8), blocks=several(2, llama_block),
                  norm=nn.RMSNorm(8), head=linear(8, K)),
            WORDS,
        ),
        "capped-scores": lambda: with_head(capped, 4, steps(), qkv=linear(4, 12), scale=weight(2, 1, 1)),
        "attention-without-softmax": lambda: with_head(
            without_softmax, 4, steps(), norms=several(2, nn.LayerNorm, 4), layers=several(2, nn.Linear, 4, 12)
        ),
        "differential-attention": lambda: with_head(
            differential, 6, steps(), qk=linear(4, 16), v=linear(4, 6), norm=nn.RMSNorm(6),
            **{name: weight(4, scale=5) for name in "abcd"},
        ),
        "latent-keys": lambda: with_head(
            latent_keys, 8, steps(), down=linear(4, 5), norm=nn.RMSNorm(3), up=linear(3, 16), q=linear(4, 12)
        ),
        "attention-sinks": lambda: with_head(sinks, 4, steps(), qkv=nn.Linear(4, 12), sink=weight(2)),
        "unit-norms": lambda: (Calls(
            unit_norms, table=nn.Embedding(12, 6), first=tensors(2, 6, 8), last=tensors(2, 8, 6),
            rates=tensors(2, 6, scale=5), out=weight(6, K), scale=weight(K),
        ), WORDS),
        "residual-streams": lambda: with_head(
            streams, 5, mixes=tensors(2, 3, 3), reads=tensors(2, 3), writes=tensors(2, 3),
            layers=nn.ModuleList(mlp_of(5, 6, 5) for _ in range(2)),
        ),
        "looped-transformer": lambda: with_head(
            looped, 4, steps(), block=encoder_layer(4, norm_first=True), steps=weight(4, 4), halt=nn.Linear(4, 1)
        ),
        "registers": lambda: with_head(
            registers, 8, images(8), place=weight(1, 4, 3, 3), extra=weight(3, 4), patch=nn.Linear(48, 4),
            norm=nn.LayerNorm(4), scale=weight(4), attention=attention(4),
        ),
        "padded-encoder": lambda: with_head(
            padded, 4, {"x": WORDS, "mask": mask}, table=nn.Embedding(12, 4, padding_idx=0),
            encoder=nn.TransformerEncoder(encoder_layer(4), 2),
        ),
        "whole-transformer": lambda: with_head(
            whole_transformer, 4, steps(), net=nn.Transformer(4, 2, 1, 1, 6, batch_first=True, activation="gelu")
        ),
        "hopfield": lambda: with_head(
            pooled_by_memory, 4, query=nn.Linear(5, 4), norm=nn.LayerNorm(4, elementwise_affine=False),
            stored=weight(7, 4), beta=weight(1),
        ),
        "state-space-duality": lambda: with_head(
            duality, 4, steps(), into=linear(4, 16), conv=nn.Conv1d(4, 4, 3, padding=2, groups=4),
            bias=weight(2), log_a=weight(2), skip=weight(2), norm=nn.RMSNorm(4),
        ),
        "rwkv": lambda: with_head(
            rwkv, 4, steps(), kvr=several(3, linear, 4, 4), mix=tensors(3, 4), first=weight(4), decay=weight(4),
            gate=linear(4, 4), up=linear(4, 6), down=linear(6, 4),
        ),
        "retention": lambda: with_head(
            retention, 4, steps(), qkv=linear(4, 12), decay=torch.tensor([0.9, 0.7]), gate=linear(4, 4),
            norm=nn.GroupNorm(2, 4),
        ),
        "linear-attention": lambda: with_head(
            linear_attention, 4, steps(), layers=several(2, nn.Linear, 4, 12), random=torch.randn(4, 6)
        ),
        "delta-rule": lambda: with_head(
            delta_rule, 4, steps(), qkv=linear(4, 12), rate=nn.Linear(4, 1), keep=nn.Linear(4, 4), norm=nn.RMSNorm(4)
        ),
        "matrix-memory": lambda: with_head(matrix_memory, 4, steps(), qkv=linear(4, 12), gates=nn.Linear(4, 2)),
        "least-gru": lambda: with_head(least_gru, 4, steps(), into=nn.Linear(4, 8)),
        "diagonal-states": lambda: with_head(
            diagonal_states, 4, steps(), log_dt=weight(4, scale=2), log_a=weight(4, 3), imaginary=weight(4, 3),
            c=weight(4, 3, 2), skip=weight(4),
        ),
        "implicit-filters": lambda: with_head(
            implicit_filters, 4, steps(), first=nn.Linear(1, 5), last=nn.Linear(5, 4), decay=weight(4),
            into=nn.Linear(4, 8),
        ),
        "dilated": lambda: with_head(
            dilated, 4, torch.randn(4, 3, 8), convs=nn.ModuleList([normed_conv(3, 4, 0), normed_conv(4, 4, 1)]),
            skips=nn.ModuleList([nn.Conv1d(3, 4, 1), nn.Identity()]),
        ),
        "convolved-lstm": lambda: with_head(
            convolved_lstm, 3, torch.randn(4, 3, 2, 4, 4), gates=nn.Conv2d(5, 12, 3, padding=1)
        ),
        "soft-mixture": lambda: with_head(
            soft_mixture, 4, steps(), scale=weight(1), slots=weight(3, 2, 4),
            experts=nn.ModuleList(mlp_of(4, 5, 4) for _ in range(3)),
        ),
        "balanced-mixture": lambda: with_head(
            balanced, 4, gate=linear(5, 4), bias=torch.randn(4) / 10, first=weight(4, 5, 6), last=weight(4, 6, 4),
            shared=mlp_of(5, 4, 4),
        ),
        "mixture-of-depths": lambda: with_head(
            mixture_of_depths, 4, steps(), gates=several(2, linear, 4, 1), blocks=several(2, encoder_layer, 4)
        ),
        "updates-by-hand": lambda: with_head(
            updated, 5, frozen=torch.randn(5, 5), a=weight(2, 5), b=weight(5, 2, scale=9), c=weight(2, 5),
            d=weight(5, 2), length=weight(5, 1),
        ),
        "weights-made": lambda: (
            Calls(weights_made, writer=mlp_of(3, 4, 36)), {"x": rows(), "condition": torch.randn(4, 3)}
        ),
        "modulated": lambda: with_head(
            modulated, 64, {"x": images(8), "condition": torch.tensor([0, 2, 1, 1])}, film=nn.Linear(3, 8),
            table=nn.Embedding(3, 3), norm=nn.BatchNorm2d(4, affine=False), conv=nn.Conv2d(3, 4, 3, padding=1),
            blur=torch.tensor([1.0, 2, 1]).outer(torch.tensor([1.0, 2, 1])) / 16,
        ),
        "one-step-ahead": lambda: of(
            one_step_ahead, net=mlp(), rate=weight(1), examples=torch.randn(6, 5), answers=torch.arange(6) % K
        ),
        "stacked-members": lambda: of(stacked_members, members=several(3, mlp)),
        "stacked-by-hand": lambda: of(stacked_by_hand, members=several(3, mlp)),
        "cached-parametrizations": parametrized,
        "pruned": pruned,
        "equilibrium": lambda: with_head(
            equilibrium, 6, into=nn.Linear(5, 8), inner=nn.Linear(6, 8), last=nn.Linear(8, 6), norm=nn.LayerNorm(6)
        ),
        "remembers-its-attention": remembering,
        "splines": lambda: of(
            splines, grid=torch.linspace(-2, 2, 9), bases=nn.ModuleList([linear(5, 4), linear(4, K)]),
            splines=nn.ParameterList([weight(4, 5, 5), weight(K, 4, 5)]),
        ),
        "feature-tokens": lambda: with_head(
            feature_tokens, 4, {"x": rows(), "kinds": torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1]])},
            frequency=weight(5, 3, scale=3), number=weight(5, 6, 4), table=nn.Embedding(5, 4),
            offset=torch.tensor([0, 3]), start=weight(1, 1, 4), block=encoder_layer(4, norm_first=True),
        ),
        "thin-ensemble": lambda: of(
            thin_ensemble, into=weight(3, 5), shared=nn.ParameterList([weight(5, 6), weight(6, 6)]),
            r=nn.ParameterList([weight(3, 5), weight(3, 6)]), s=tensors(2, 3, 6), bias=tensors(2, 3, 6),
            last=weight(3, 6, K),
        ),
        "masked-steps": lambda: with_head(
            masked_steps, 4, norm=nn.BatchNorm1d(5), split=nn.Linear(5, 8), choose=several(3, linear, 4, 5),
            layers=several(3, nn.Linear, 5, 16),
        ),
        "additive": lambda: of(
            additive, shift=weight(5, 4), log_scale=weight(5, 4), last=weight(5, 4, K), bias=weight(K)
        ),
        "soft-trees": lambda: of(
            trees, features=weight(3, 2, 5), splits=weight(3, 2), log_sharp=weight(3, 2, scale=3),
            leaves=weight(3, 4, K),
        ),
        "mixture-density": lambda: of(
            mixture_density, inner=nn.Linear(5, 3), means=weight(K, 2, 3), lower=weight(K, 2, 3, 3),
            shares=weight(K, 2), prior=weight(K),
        ),
        "prototypes": lambda: of(
            prototypes, inner=nn.Linear(5, 4), examples=torch.randn(6, 5), answers=torch.arange(6) % K,
            metric=weight(4, 4),
        ),
        "hyperbolic": lambda: of(hyperbolic, inner=nn.Linear(5, 3), points=weight(K, 3), scale=weight(1)),
        "features-of-a-process": lambda: with_head(
            by_features_of_a_process, 6, inner=parametrizations.spectral_norm(nn.Linear(5, 4)),
            norm=nn.LayerNorm(4, elementwise_affine=False), random=torch.randn(4, 6), phase=torch.rand(6),
            precision=torch.eye(6) * 3,
        ),
        "ordered-classes": lambda: of(ordered, score=linear(5, 1), first=weight(1), gaps=weight(1)),
        "latent-reader": lambda: with_head(
            latent_reader, 4, images(4), latents=weight(3, 4), into=nn.Linear(11, 4), cross=attention(4),
            norm=nn.LayerNorm(4), inner=mlp_of(4, 6, 4),
        ),
        "induced-sets": lambda: with_head(
            induced, 4, {"x": torch.randn(4, 6, 3), "mask": mask}, into=nn.Linear(3, 4), points=weight(2, 4),
            query=weight(1, 4), inner=nn.Linear(4, 4), **{name: attention(4) for name in ("induce", "out", "pool")},
        ),
        "transported-attention": lambda: with_head(transported, 4, steps(), qkv=nn.Linear(4, 12)),
        "pooled-graph": lambda: with_head(
            pooled_graph, 5, {"x": torch.randn(4, 6, 3), "adjacency": graphs()}, assign=nn.Linear(3, 2),
            first=nn.Linear(3, 4), second=nn.Linear(4, 5),
        ),
        "graph-transformer": lambda: with_head(
            graph_transformer, 4, {"x": torch.randn(4, 6, 4), "distance": torch.randint(0, 4, (4, 6, 6))},
            degree=nn.Embedding(7, 4), norm=nn.LayerNorm(4), qkv=nn.Linear(4, 12), distance=nn.Embedding(4, 2),
        ),
        "equivariant": lambda: with_head(
            equivariant, 4, torch.randn(4, 5, 3), start=weight(4),
            edges=nn.ModuleList(mlp_of(9, 5, 4) for _ in range(2)),
            nodes=nn.ModuleList(mlp_of(8, 5, 4) for _ in range(2)), moves=several(2, linear, 4, 1),
        ),
        "capsules": lambda: (
            Calls(capsules, conv=nn.Conv2d(3, 8, 5, stride=2), votes=weight(8, K, 4, 4)), images(8)
        ),
        "sines": lambda: with_head(sines, 6, layers=nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 6)])),
        "standardised-weights": lambda: with_head(
            standardised, 4, images(8), conv=nn.Conv2d(3, 4, 3), gain=nn.Parameter(torch.ones(4, 1, 1, 1)),
            squeeze=mlp_of(4, 2, 4), place=nn.Conv2d(2, 1, 3, padding=1),
        ),
        "involution": lambda: with_head(
            involved, 3, images(6), make=nn.Conv2d(3, 9, 1), power=nn.Parameter(torch.tensor(3.0))
        ),
        "warped": lambda: with_head(warped, 48, images(8), locate=nn.Linear(192, 6)),
        "compiled-function": lambda: with_head(
            lambda m, x: m.head(fused(m.first(x), m.scale)), 6, first=nn.Linear(5, 6), scale=weight(6)
        ),
        "scripted-function": lambda: with_head(
            lambda m, x: m.head(gated(m.first(x), m.scale)), 3, first=nn.Linear(5, 6), scale=weight(3)
        ),
        "several-tasks": lambda: of(
            lambda m, x: {"hidden": m.net(x), "logits": m.a(m.net(x)), "other": m.b(m.net(x))},
            net=mlp(out=4), a=nn.Linear(4, K), b=nn.Linear(4, 2),
        ),
        "several-tasks-without-logits": lambda: of(
            lambda m, x: {"digit": m.a(m.net(x)), "colour": m.b(m.net(x))},
            net=mlp(out=4), a=nn.Linear(4, K), b=nn.Linear(4, 2),
        ),
        "capsule-lengths": lambda: (
            Calls(lambda m, x: capsules(m, x).sigmoid(), conv=nn.Conv2d(3, 8, 5, stride=2), votes=weight(8, K, 4, 4)),
            images(8),
        ),
        "one-step-at-the-end": lambda: with_head(one_step_at_the_end, 5, inner=mlp(out=5)),
        "length-held": lambda: with_head(
            length_held, 6, frozen=torch.randn(6, 5), c=weight(2, 5), d=weight(6, 2), length=weight(6, 1)
        ),
        "fake-quantised": lambda: with_head(fake_quantised, 6, first=nn.Linear(5, 6)),
        "learned-step": lambda: with_head(learned_step, 6, first=linear(5, 6), step=nn.Parameter(torch.tensor(0.05))),
        "ternary": lambda: with_head(ternary, 6, first=linear(5, 6)),
        "codebook": lambda: with_head(codebook, 4, first=nn.Linear(5, 4), words=weight(6, 4)),
        "sampled-weights": lambda: with_head(sampled, 6, mean=weight(6, 5), spread=weight(6, 5)),
        "chosen-with-noise": lambda: of(chosen_with_noise, gate=nn.Linear(5, 4), experts=weight(4, K)),
        "within-capacity": lambda: with_head(
            within_capacity, 4, gate=linear(5, 2), experts=nn.ModuleList(mlp_of(5, 4, 4) for _ in range(2))
        ),
        "entmax-function": lambda: with_head(
            lambda m, x: m.head(Entmax.apply(3 * m.first(x))), 6, first=nn.Linear(5, 6)
        ),
        "operator-of-ones-own": lambda: with_head(lambda m, x: m.head(squares(m.first(x))), 6, first=nn.Linear(5, 6)),
        "sampled-grid": lambda: with_head(sampled_grid, 48, images(8), locate=nn.Linear(192, 6)),
    }  # fmt: skip
