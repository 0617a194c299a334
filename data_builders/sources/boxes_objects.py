"""The things that the Boxes world keeps in its boxes: 100 common one-word nouns that fit into a box."""

from __future__ import annotations

_NAMES = """
    anchor apron badge balloon banana basket battery belt blanket bolt
    bowl bracelet brick brush bucket button cable calculator candle cap
    carrot chain chalk charger cherry clip cloth coin comb compass
    cork crayon crown cushion dice doll drum envelope eraser feather
    flag flute fork funnel glove glue goblet hammer handle helmet
    hook jar kettle kite ladle lamp lantern lemon lens lock
    magnet marble mask medal mirror mitten mug nail napkin necklace
    needle notebook onion orange paddle paintbrush peg pencil pillow plug
    puppet puzzle ribbon rope ruler sandal scarf scissors screw shell
    soap sock spoon sponge stamp string thimble towel umbrella whistle
"""

OBJECTS: tuple[str, ...] = tuple(_NAMES.split())
