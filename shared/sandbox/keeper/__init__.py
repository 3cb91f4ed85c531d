"""The process under which every jail of ours runs, and its client."""
