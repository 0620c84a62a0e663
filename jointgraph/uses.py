"""Who uses a value, seen through views: a use of a view is a use of what it is a view of."""

import operator
from collections.abc import Iterable

from torch import fx

from jointgraph import _torch as t


def find_uses(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that use the values of some nodes, in graph order. Reads the users of these and of their views.

    A view is no use by itself; its users are. What writes to the value, or to a view of it, is a use, and so is the
    output node, if it returns the value or a view. An operator's schema tells what is a view: one that may copy, such
    as ``aten.reshape``, counts as one; ``aten._unsafe_view``, which says that it makes a new value, does not.
    """
    uses: set[fx.Node] = set()
    seen = dict.fromkeys(nodes)
    to_do = list(seen)
    while to_do:
        node = to_do.pop()
        for user in node.users:
            is_view, is_write = _aliasing(user, node)
            if is_write or not is_view:
                uses.add(user)
            if is_view and user not in seen:
                seen[user] = None
                to_do.append(user)
    return sorted(uses)


def _aliasing(user: fx.Node, node: fx.Node) -> tuple[bool, bool]:
    """Whether what ``user`` returns shares memory with ``node``, and whether it writes to that."""
    if user.target is operator.getitem:
        return t.returns_alias(node), False
    found = [is_write for value, is_write in t.aliased_inputs(user) if value is node]
    return bool(found) and t.returns_alias(user), any(found)
