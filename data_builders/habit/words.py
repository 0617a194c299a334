"""What the stories of the habit task are about. All places go with `in the` and `to the`."""

from __future__ import annotations

# Nobody would know where these belong: their habitual places are the seed's.
THINGS = (
    "key",
    "coin",
    "ring",
    "ball",
    "ribbon",
    "candle",
    "stamp",
    "whistle",
    "feather",
    "button",
    "compass",
    "marble",
    "medal",
    "flag",
    "pebble",
    "map",
    "mask",
    "kite",
    "drum",
    "lamp",
)
PLACES = (
    "barn",
    "garage",
    "kitchen",
    "garden",
    "attic",
    "cellar",
    "office",
    "library",
    "bedroom",
    "bathroom",
    "church",
    "museum",
    "station",
    "harbour",
    "bakery",
    "school",
    "hospital",
    "theatre",
    "stable",
    "tower",
)
# Where a model that has read English would look for them without having read the story.
KNOWN_HABITS = {
    "plate": "kitchen",
    "car": "garage",
    "pillow": "bedroom",
    "towel": "bathroom",
    "flower": "garden",
    "book": "library",
    "wine": "cellar",
    "painting": "museum",
    "ship": "harbour",
    "hay": "barn",
    "desk": "office",
    "altar": "church",
    "microscope": "laboratory",
    "telescope": "observatory",
    "coin": "bank",
    "lion": "zoo",
}
PEOPLE = ("Felix", "Anna", "Omar", "Lena", "Ivan", "Mia", "Noah", "Sara", "Tom", "Ruth", "Hugo", "Nina")
