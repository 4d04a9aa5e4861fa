"""From bytes to tokens: vocabularies, lifting, automata over tokens, and budgets."""
