"""The lesson path, questions, drills and flashcards; every answer computed."""
