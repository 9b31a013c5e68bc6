"""`turngym/SQL-v0`: questions in words over SQLite databases.

env        the environment
problems   a question, its query, the database that can be seen and the hidden ones
domains, questions   generated databases and questions
spider     the Spider development databases of the package `intercode-bench`
engine, worker       queries in processes that can be killed
match      execution match
"""
