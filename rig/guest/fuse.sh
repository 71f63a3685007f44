# A far disk as a file: no kernel USB on this side. VIA is for refusals.
VIA=fuse
