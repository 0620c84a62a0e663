"""Why an index has no record of a name or a descriptor, and what to ask for instead."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from jointgraph.exceptions import UnknownNameError


def unknown(key: object, title: str, known: Iterable[object], hints: Sequence[str]) -> UnknownNameError:
    """The error for a ``key`` that a view has no record of.

    Args:
        key: what was asked for.
        title: the view's name.
        known: the view's keys.
        hints: sentences that say where the value may have gone.
    """
    by_text = {str(one): one for one in known}
    matches = [by_text[text] for text in get_close_matches(str(key), by_text, n=3, cutoff=0.6)]
    if matches:
        offer = f" Did you mean {' or '.join(map(repr, matches))}?"
    elif by_text:
        some = ", ".join(repr(one) for one in list(by_text.values())[:5])
        offer = f" There {'is' if len(by_text) == 1 else 'are'} {some}{', ...' if len(by_text) > 5 else ''}."
    else:
        offer = f" The graph has no {title} at all."
    return UnknownNameError(" ".join([f"{key!r} is not in {title}.{offer}", *hints]), key, matches)
