"""What can go wrong between a program and a service.

ServiceAway      it cannot be reached, or what answers is no service of ours
ServiceRefused   it did not do what was asked; the words are its own
 ├─ NotAllowed   the token is missing, unknown or of a lesser role
 └─ NotThere     it has nothing of that name
StillRunning     a study did not end in the time that was given
"""

from records.errors import EnvironmentFault, StudyError


class ServiceAway(EnvironmentFault):
    """The service cannot be reached, or does not answer as one."""


class ServiceRefused(StudyError):
    """The service did not do what was asked."""


class NotAllowed(ServiceRefused):
    """The token does not allow it."""


class NotThere(ServiceRefused):
    """The service has nothing of that name."""


class StillRunning(StudyError):
    """A study did not end in the time that was given; it goes on."""
