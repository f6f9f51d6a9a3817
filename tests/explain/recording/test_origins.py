"""Origins: what values are made of, against sets that are followed one by one."""

import torch

from vision_attn.explain.recording.origins import NOTHING, CallOrigins, Origins


def random_run(seed):
    """Origins, what each was made of, and two attention calls whose outputs others are made of."""
    random = torch.Generator().manual_seed(seed)
    origins, made_of, calls = Origins(), {}, []
    ids = origins.new(7)
    for at in range(6):
        if at in (2, 4):
            queries, keys = ids[torch.randint(len(ids), (2, 3), generator=random)].unbind()
            outputs = origins.outputs(queries[None], len(calls), keys[None])
            calls.append(CallOrigins(queries[None], keys[None], outputs))
            ids = torch.cat([ids, outputs[0]])
        rows = ids[torch.randint(len(ids), (5, 3), generator=random)]
        rows[torch.rand(5, 3, generator=random) < 0.2] = NOTHING
        before, found = origins.count, origins.merge(rows)
        for one, row in zip(found.tolist(), rows.tolist(), strict=True):
            if one >= before:
                made_of[one] = {*row} - {NOTHING}
        ids = torch.cat([ids, found[found != NOTHING]])
    return origins, made_of, calls


def followed(ids, made_of, ends=frozenset()):
    found, stack = set(), list(ids)
    while stack:
        one = stack.pop()
        if one not in found:
            found.add(one)
            stack += made_of.get(one, ()) if one not in ends else ()
    return found


def listed(found):
    return set(found.nonzero()[:, 0].tolist())


def test_what_is_behind_is_what_each_was_made_of_followed_one_by_one():
    many = 0
    for seed in range(20):
        origins, made_of, calls = random_run(seed)
        for one, of in made_of.items():
            assert origins.members(one) == sorted(of)
            assert listed(origins.behind([one])) == followed([one], made_of)
        last = sorted(made_of)[-2:]
        through = dict(made_of)
        for call in calls:
            of = {*call.queries.flatten().tolist(), *call.keys.flatten().tolist()}
            through |= dict.fromkeys(call.outputs.flatten().tolist(), of - {NOTHING})
        everything = followed(last, through)
        assert listed(origins.behind(last, calls)) == everything
        many += everything > followed(last, made_of)
        ends = set(sorted(made_of)[2:8:2])
        stops = torch.zeros(origins.count, dtype=torch.bool)
        stops[list(ends)] = True
        assert listed(origins.behind(last, ends=stops)) == followed(last, made_of, ends)
    assert many > 5  # where a call made a difference


def test_nothing_is_behind_nothing():
    origins = Origins()
    origins.new(3)
    assert not origins.behind([]).any()
