"""All families of attacks; importing this registers them."""

import answers  # noqa: F401
import bodies  # noqa: F401
import browsers  # noqa: F401
import connections  # noqa: F401
import files  # noqa: F401
import framing  # noqa: F401
import full_disk  # noqa: F401
import grammars  # noqa: F401
import half_close  # noqa: F401
import http2  # noqa: F401
import masks  # noqa: F401
import operating  # noqa: F401
import priorities  # noqa: F401
import sampling  # noqa: F401
import slow_readers  # noqa: F401
import standard_error  # noqa: F401
import templates  # noqa: F401
import text  # noqa: F401
import tokenizer_queue  # noqa: F401
import wire_rules  # noqa: F401
