"""Check again what files of rows claim: consistency, weights, images, points and predictions. Nothing is attacked."""
