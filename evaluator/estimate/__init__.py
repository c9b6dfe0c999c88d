"""What a step of a configuration should take, guessed from sizes alone: it ranks, it is no result.

Every part is proportional to what it stands for; how much each weighs, measured trials tell.
"""
