"""The habit task: stories in which most things end at their habitual place, and the data source."""
