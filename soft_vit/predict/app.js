// Loaded into every panel of the page; `element`, `props` and `trigger` are Gradio's.

// A click on a picture, of which there are many, is a place on all of them.
element.addEventListener('click', event => {
  if (event.target.tagName !== 'IMG') return;
  const box = event.target.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  document.querySelectorAll('.mark').forEach(mark => {
    mark.style.left = `${100 * x}%`;
    mark.style.top = `${100 * y}%`;
  });
  trigger('select', {x, y});
});

// A file is chosen or dropped. Files that are too large are not sent.
const send = file => {
  if (!file) return;
  if (file.size > props.most) return trigger('upload', {size: file.size});
  const reader = new FileReader();
  reader.onload = () => trigger('upload', {size: file.size, data: reader.result.split(',')[1] || ''});
  reader.readAsDataURL(file);
};
element.addEventListener('click', event => {
  if (event.target.tagName === 'BUTTON') element.querySelector('input').click();
});
element.addEventListener('change', event => {
  send(event.target.files[0]);
  event.target.value = '';
});
element.addEventListener('dragover', event => event.preventDefault());
element.addEventListener('drop', event => {
  event.preventDefault();
  send(event.dataTransfer.files[0]);
});
