"""Signatures of calls, by Standard Webhooks 1.0.0.

    webhook-id: 00c0ffee00c0ffee_1a1ff7acb80_7   the same at every attempt
    webhook-timestamp: 1795256100                of this attempt, in seconds
    webhook-signature: v1,<base64> v1,<base64>

The text `id.timestamp.body` is signed by HMAC-SHA256, once with each active secret. A receiver that
knows one of them accepts the call, so a secret is exchanged without a break.

>>> signature([bytes(range(32))], "msg_1", 1_795_256_100, b"{}")
'v1,g8t1FE/w65RPYYZwgTUlgSX7egFtgxdnID8jEGj9UOk='

The module does not know clocks, HTTP, or where secrets are kept (`access.signing_secrets`).
"""

import base64
import hashlib
import hmac
from collections.abc import Iterable


def signature(keys: Iterable[bytes], message_id: str, epoch_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    signed = b"%s.%d.%s" % (message_id.encode(), epoch_s, body)
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
