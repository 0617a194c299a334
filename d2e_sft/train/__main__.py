"""`python -m d2e_sft.train RECIPE …` is `d2e train RECIPE …`: the module that `accelerate launch -m` runs."""

import sys

from d2e_sft.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
