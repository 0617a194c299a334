"""The prompt families of CREPE: each turns procedures into conversations, and the replies into labels."""
