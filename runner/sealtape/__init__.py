"""sealtape: model calls recorded once, replayed in a container without a network.

What is exported here is what users import. See `help()` of each.
"""

from sealtape.cassette.key import key_for
from sealtape.errors import CallRefused, CassetteMiss, SealtapeError
from sealtape.guest.ask import CallError, call
from sealtape.guest.session import session

__all__ = [
    "CallError",
    "CallRefused",
    "CassetteMiss",
    "SealtapeError",
    "__version__",
    "call",
    "key_for",
    "session",
]

__version__ = "0.1.0"
