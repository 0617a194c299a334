"""`python -m d2e_sft.train RECIPE …` is `d2e train RECIPE …`: the module that `accelerate launch -m` runs."""

import sys

from d2e_sft.cli import main
from d2e_sft.util.paths import leave_working_folder

if __name__ == "__main__":
    leave_working_folder()
    main(["train", *sys.argv[1:]])
