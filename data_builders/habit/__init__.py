"""The habit task: things that are moved from place to place, most of them to where they always end."""
