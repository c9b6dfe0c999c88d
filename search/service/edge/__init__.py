"""What stands between the network and the service: connections, checks of requests, who may."""
