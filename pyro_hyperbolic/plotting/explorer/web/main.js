const data = new Data(JSON.parse(document.getElementById("data").textContent));
const app = new App(data);
control(app);
panel(app);
window.explorer = app;
