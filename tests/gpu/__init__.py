"""What only an accelerator can prove, rehearsed on a CPU in tiny shapes."""
