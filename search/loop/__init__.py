"""The search itself: propose, launch, race, confirm, until it is done."""
