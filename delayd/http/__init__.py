"""The HTTP API: what the core can do, in the conventions that HTTP clients expect.

    guard, accepting, connections, bounds    what a connection may cost
    assembly, app, dispatch, door            start and stop; the way of a request to its handler
    routes, manual, openapi                  the table of calls, in words, as a document
    schemas, queries, answers, overviews     what they say, and what they are answered
    api, reading, values, telling            what the handlers share
    puts, jobs, reserving, leases            the handlers for jobs
    looking, topics, health, figures         those for topics and for the daemon
    problems                                 what is answered to who is refused

A handler runs between two turns: it asks the engine, which answers at once, and then waits until
the next turn has made what it did durable. What HTTP tells is on disk.
"""
