"""Every kind of backbone through everything that can be done with a network; ``docs/backbones.md`` has the table."""
