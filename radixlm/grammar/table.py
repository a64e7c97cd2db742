"""The grammar backends by the names of --grammar-backend. `rank` orders what `auto` tries for each grammar."""

from radixlm.base.registry import Registry, Row
from radixlm.grammar.base import GrammarBackend

_HERE = "radixlm.grammar."

BACKENDS: Registry[type[GrammarBackend]] = Registry(
    "grammar backend",
    [
        Row("xgrammar", f"{_HERE}xgrammar:XGrammar", 30),
        Row("llguidance", f"{_HERE}llguidance:LLGuidance", 20),
        Row("outlines", f"{_HERE}outlines:Outlines", 10),
    ],
)
