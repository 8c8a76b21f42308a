"""What an action does: by the state, along a variable, and with a robust interval."""
