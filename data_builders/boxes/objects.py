"""The things that the Boxes world keeps in its boxes: two lists without a common word, each of 100 one-word nouns.

`OBJECTS` are common nouns; `RARE_OBJECTS` are seldom met in text, for the splits whose training objects are others.
"""

from __future__ import annotations

_COMMON = """
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

_RARE = """
    aglet alembic alidade ampoule argand armillary astrolabe athame aspergillum baldric
    barometer bezoar bodkin bombard bouillotte brazier burin busk cabochon cachepot
    caltrop caduceus carboy castanet cenotaph censer chasuble cittern cloche codpiece
    cresset cuspidor dirndl doubloon epaulette ephod ewer farthing ferrule firkin
    fleam frisket gauntlet gewgaw girandole gnomon gorget grapnel halberd hygrometer
    inkhorn jeroboam kalimba kris lorgnette lunette lychgate mandrel marlinspike matryoshka
    metronome monocle netsuke nutcracker obelus ocarina orrery pannikin parasol pavise
    periapt phylactery pipette planchette pomander porringer prie quaich quern quipu
    reliquary rhyton sackbut samovar scrimshaw sextant sistrum snuffbox spandrel spinneret
    stein thurible tiara trivet truss tureen ushabti vinaigrette whelk zither
"""

OBJECTS: tuple[str, ...] = tuple(_COMMON.split())
RARE_OBJECTS: tuple[str, ...] = tuple(_RARE.split())
